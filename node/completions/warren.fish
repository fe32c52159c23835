# Completion of verbs and options for warren's tools and their names from RabbitMQ.
function __warren_verbs
    set -l words (commandline -opc)
    set -l tool $words[1]
    if test (basename $words[1]) = warren
        contains -- "$words[2]" ctl diagnostics queues upgrade; or return
        set tool $words[1..2]
        set -e words[1]
    end
    # A verb where there is none yet, else options.
    for word in $words[2..-1]
        if not string match -q -- '-*' $word; and not string match -q -- '-*' (commandline -ct)
            return
        end
    end
    $tool autocomplete -- (commandline -ct) 2>/dev/null
end
complete -c warren -n 'test (count (commandline -opc)) -eq 1' -f -a 'server ctl diagnostics queues upgrade perf'
for tool in warren rabbitmqctl rabbitmq-diagnostics rabbitmq-queues rabbitmq-upgrade
    complete -c $tool -f -a '(__warren_verbs)'
end
