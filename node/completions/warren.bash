# Completion of verbs and options for warren's tools and their names from RabbitMQ.
_warren() {
    local tool=("${COMP_WORDS[0]}") first=1 word=${COMP_WORDS[COMP_CWORD]}
    if [[ ${COMP_WORDS[0]##*/} == warren ]]; then
        if ((COMP_CWORD == 1)); then
            mapfile -t COMPREPLY < <(compgen -W "server ctl diagnostics queues upgrade perf --help --version" -- "$word")
            return
        fi
        case ${COMP_WORDS[1]} in
            ctl | diagnostics | queues | upgrade) tool+=("${COMP_WORDS[1]}") first=2 ;;
            *) return ;;
        esac
    fi
    # A verb where there is none yet, else options; other words are names that nobody can guess.
    local at
    for ((at = first; at < COMP_CWORD; at++)); do
        if [[ ${COMP_WORDS[at]} != -* && $word != -* ]]; then
            return
        fi
    done
    mapfile -t COMPREPLY < <("${tool[@]}" autocomplete -- "$word" 2>/dev/null)
}
complete -o default -F _warren warren rabbitmqctl rabbitmq-diagnostics rabbitmq-queues rabbitmq-upgrade
