"""Whether vLLM starts, and how many requests run at once: start rules and the scheduler's users.

    refused = starts(StartQuestion(config=model.config, max_num_seqs=1024, ...), pool, rules("0.32.0"))  # () starts
    served = users(pool, ctx, rules=rules("0.32.0"), max_num_seqs=256, max_num_batched_tokens=8_192)
    served.users, served.binds, served.why

`pool` is what `pool.plan.plan_pool` answers; rules.py has every refusal's source and versions, start.py
the checks, users.py the rule, schedule.py the scheduler's steps in integers.
"""

from membudget.engines.vllm.admission.rules import RULES, StartRule
from membudget.engines.vllm.admission.schedule import Holding, Run
from membudget.engines.vllm.admission.start import Refusal, StartQuestion, max_num_seqs, starts
from membudget.engines.vllm.admission.users import Binds, Users, UsersError, runs, smallest_pool, users

__all__ = [
    "RULES",
    "Binds",
    "Holding",
    "Refusal",
    "Run",
    "StartQuestion",
    "StartRule",
    "Users",
    "UsersError",
    "max_num_seqs",
    "runs",
    "smallest_pool",
    "starts",
    "users",
]
