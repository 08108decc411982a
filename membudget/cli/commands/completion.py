"""Completion for a shell: commands, options, models, machines, formats, budget files.

bash, in ~/.bashrc:                    eval "$(membudget completion bash)"
zsh, in ~/.zshrc after compinit:       eval "$(membudget completion zsh)"
fish, in ~/.config/fish/config.fish:   membudget completion fish | source
PowerShell, in $PROFILE:               membudget completion powershell | Out-String | Invoke-Expression
"""

from __future__ import annotations

from argcomplete.shell_integration import shellcode

from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares

SHELLS = ("bash", "zsh", "fish", "powershell")


def options(parser: Declares) -> None:
    """The arguments of `membudget completion`."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run(args: Arguments) -> Result:
    """Print argcomplete's script for the shell; what it offers is in `membudget.cli.commands.candidates`."""
    script = shellcode(["membudget"], True, args.shell)
    return Result(0, {"shell": args.shell, "script": script}, lambda: script.rstrip("\n"))
