"""Completion for a shell: commands, options, models, machines, formats, budget files.

bash, in ~/.bashrc:                    eval "$(membudget completion bash)"
zsh, in ~/.zshrc after compinit:       eval "$(membudget completion zsh)"
fish, in ~/.config/fish/config.fish:   membudget completion fish | source
"""

from __future__ import annotations

import os

from membudget.cli.commands import Result
from membudget.cli.commands.arguments import Arguments, Declares

#: Set by the scripts: the words up to the cursor, one a line, the program's name first.
WORDS = "MEMBUDGET_COMPLETE"

# bash cuts words at = and :, so only what follows the last of them may be answered.
_BASH = """\
_membudget_complete() {
    local line=${COMP_LINE:0:COMP_POINT} word candidate files='' lead=''
    local -a words
    read -r -a words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=('')
    word=${words[${#words[@]}-1]}
    [[ $word == *[=:]* && $COMP_WORDBREAKS == *[=:]* ]] && lead=${word%"${word##*[=:]}"}
    COMPREPLY=()
    while IFS=$'\\t' read -r candidate _; do
        case $candidate in
            :*) files=$candidate ;;
            *) COMPREPLY+=("${candidate#"$lead"}") ;;
        esac
    done < <(MEMBUDGET_COMPLETE="$(printf '%s\\n' "${words[@]}" .)" command "${words[0]}" completion bash 2>/dev/null)
    word=${word#"$lead"}
    if [[ $files == :folders ]]; then
        compopt -o filenames 2>/dev/null
        while IFS= read -r candidate; do COMPREPLY+=("$candidate"); done < <(compgen -d -- "$word")
    elif [[ -n $files ]]; then
        [[ ${#COMPREPLY[@]} -eq 0 ]] && compopt -o filenames 2>/dev/null
        while IFS= read -r candidate; do
            [[ $files == :files || -d $candidate || $candidate == *.y?(a)ml ]] && COMPREPLY+=("$candidate")
        done < <(compgen -f -- "$word")
    fi
}
complete -F _membudget_complete membudget
"""
_ZSH = """\
#compdef membudget
_membudget_complete() {
    local candidate text files=''
    local -a values shown
    while IFS=$'\\t' read -r candidate text; do
        case $candidate in
            :*) files=$candidate ;;
            *) values+=("$candidate"); shown+=("$candidate${text:+  -- $text}") ;;
        esac
    done < <(MEMBUDGET_COMPLETE="${(F)words[1,CURRENT]}"$'\\n.' command ${words[1]} completion zsh 2>/dev/null)
    (( ${#values} )) && compadd -l -d shown -a values
    [[ $PREFIX == --*=* ]] && compset -P '*='
    case $files in
        :folders) _files -/ ;;
        :yaml) _files -g '*.(yaml|yml)' ;;
        :files) _files ;;
    esac
    (( ${#values} )) || [[ -n $files ]]
}
compdef _membudget_complete membudget
"""
_FISH = """\
function __membudget_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l word $words[-1]
    set -l files ''
    set -lx MEMBUDGET_COMPLETE (string join -- \\n $words . | string collect)
    for line in (command $words[1] completion fish 2>/dev/null)
        if string match -q ':*' -- $line
            set files $line
        else
            echo $line
        end
    end
    test -n "$files"; or return
    set -l part (string replace -r -- '^--[^=]*=' '' $word)
    set -l lead (string sub -l (math (string length -- "$word") - (string length -- "$part")) -- "$word")
    for path in (__fish_complete_path "$part" '')
        set -l name (string split -f 1 \\t -- $path)
        switch "$files"
            case ':folders*'
                string match -q '*/' -- $name; or continue
            case ':yaml*'
                string match -q -r '(/|\\.ya?ml)$' -- $name; or continue
        end
        echo "$lead$name"
    end
end
complete -c membudget -f -a '(__membudget_complete)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def options(parser: Declares) -> None:
    """The arguments of `membudget completion`."""
    parser.add_argument("shell", metavar="SHELL", choices=tuple(SCRIPTS), help=", ".join(SCRIPTS))


def run(args: Arguments) -> Result:
    """Print the script; what stands at the cursor where the script asks."""
    typed = os.environ.get(WORDS)
    if typed is None:
        return Result(0, {"shell": args.shell, "script": SCRIPTS[args.shell]}, lambda: SCRIPTS[args.shell].rstrip("\n"))
    from membudget.cli.commands.candidates import candidates

    # Substitutions drop newlines at their end, so the scripts end the words with a dot of their own.
    words = typed.removesuffix("\n.").split("\n")
    found = candidates(words[1:])
    document = {"candidates": [{"value": value, "text": text} for value, text in found]}
    return Result(0, document, lambda: "\n".join(f"{value}\t{text}" for value, text in found))
