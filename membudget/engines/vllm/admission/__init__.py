"""Whether vLLM starts, and how many requests run at once: start rules and the scheduler's users.

    refused = starts(StartQuestion(model=model, version="0.32.0", ...), pool)   # () where it starts
    served = users(pool, ctx, rules=rules("0.32.0"), max_num_seqs=256, max_num_batched_tokens=8_192)
    served.users, served.binds, served.why

`pool` is what `pool.plan.plan_pool` answers; start.py has the refusals, users.py the rule,
schedule.py the scheduler's steps in integers.
"""

from membudget.engines.vllm.admission.schedule import Holding, Run
from membudget.engines.vllm.admission.users import Binds, Users, UsersError, runs, smallest_pool, users

__all__ = ["Binds", "Holding", "Run", "Users", "UsersError", "runs", "smallest_pool", "users"]
