#!/bin/bash
# Three Warren nodes on loopback, in the foreground, until Ctrl-C.
#   local-cluster.sh PATH/TO/warren
# WARREN_RUN_DIR (default: run/ in the clone) keeps the nodes' data and logs; WARREN_RUN_AMQP_PORTS and
# WARREN_RUN_PEER_PORTS name other ports than 5672 5673 5674 and 25672 25682 25692.
set -euo pipefail
warren=${1:?usage: local-cluster.sh PATH/TO/warren}
root=$(cd "$(dirname "$0")/.." && pwd)
run=${WARREN_RUN_DIR:-$root/run}
read -r -a amqp <<<"${WARREN_RUN_AMQP_PORTS:-5672 5673 5674}"
read -r -a peer <<<"${WARREN_RUN_PEER_PORTS:-25672 25682 25692}"
nodes=(w1@localhost w2@localhost w3@localhost)
pids=()

die() { echo "make run: $*" >&2; exit 1; }
open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

stop() {
  trap - EXIT INT TERM HUP
  [ ${#pids[@]} -eq 0 ] && return
  echo "Stopping the nodes ..."
  for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do
    for _ in $(seq 700); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -KILL "$pid" 2>/dev/null || true
  done
  wait 2>/dev/null || true
  echo "Stopped. Their data stays in $run."
}

for port in "${amqp[@]}" "${peer[@]}"; do
  if open "$port"; then
    die "port $port is taken: is the cluster running already, or a RabbitMQ? WARREN_RUN_AMQP_PORTS and WARREN_RUN_PEER_PORTS choose other ports"
  fi
done

# One data folder for all: each node has its own folder in it, named as the node is, and they share the secret.
mkdir -p "$run/data" "$run/log"
chmod 700 "$run/data"
if [ ! -s "$run/data/.erlang.cookie" ]; then
  (umask 077 && head -c 24 /dev/urandom | base64 | tr -d '/+=\n' >"$run/data/.erlang.cookie")
fi
for i in 0 1 2; do
  {
    echo "listeners.tcp.1 = 127.0.0.1:${amqp[i]}"
    echo "peer.ip = 127.0.0.1"
    echo "peer.port = ${peer[i]}"
    echo "cluster_formation.peer_discovery_backend = classic_config"
    for j in 0 1 2; do echo "cluster_formation.classic_config.nodes.$((j + 1)) = ${nodes[j]}:${peer[j]}"; done
  } >"$run/w$((i + 1)).conf"
done

# variables of the caller that would configure the nodes
for name in $(compgen -e | grep -E '^(WARREN|RABBITMQ)_' || true); do unset "$name"; done
export WARREN_DATA_DIR=$run/data

trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
for i in 0 1 2; do
  # a session of its own, so that Ctrl-C reaches this script and each node then stops in order
  setsid "$warren" server --config "$run/w$((i + 1)).conf" --data-dir "$run/data" --node "${nodes[i]}" \
    >>"$run/log/w$((i + 1)).log" 2>&1 </dev/null &
  pids+=($!)
  disown # so that bash does not show this loop to whoever kills a node
done

started=$SECONDS
for i in 0 1 2; do
  until open "${amqp[i]}"; do
    if ! kill -0 "${pids[i]}" 2>/dev/null; then
      tail -n 20 "$run/log/w$((i + 1)).log" >&2
      die "${nodes[i]} ended while starting; its log is $run/log/w$((i + 1)).log"
    fi
    if [ $((SECONDS - started)) -gt 120 ]; then die "${nodes[i]} is not ready after 120 s; its log is $run/log/w$((i + 1)).log"; fi
    sleep 0.1
  done
done

cat <<END

Three Warren nodes form a cluster. Clients connect to any of them, as user guest with password guest:

    w1@localhost   amqp://127.0.0.1:${amqp[0]}
    w2@localhost   amqp://127.0.0.1:${amqp[1]}
    w3@localhost   amqp://127.0.0.1:${amqp[2]}

Try it from Python (pip install pika):

    import pika
    channel = pika.BlockingConnection(pika.ConnectionParameters('127.0.0.1', ${amqp[0]})).channel()
    channel.queue_declare('hello', durable=True, arguments={'x-queue-type': 'quorum'}); channel.confirm_delivery(); channel.basic_publish('', 'hello', 'Hello, Warren!')
    print(next(channel.consume('hello', auto_ack=True))[2])

Look at it:      WARREN_DATA_DIR=$run/data $warren ctl -n w1@localhost cluster_status
Lose a node:     kill -9 ${pids[1]}     (that is w2; the other two carry on)
Logs and data:   $run
Stop:            Ctrl-C

END

# Stays until it is told to stop, and says so when a node goes away.
gone=()
while :; do
  for i in 0 1 2; do
    if [ -z "${gone[i]:-}" ] && ! kill -0 "${pids[i]}" 2>/dev/null; then
      gone[i]=yes
      echo "${nodes[i]} has ended; its log is $run/log/w$((i + 1)).log. Ctrl-C and 'make run' start it again."
    fi
  done
  if [ ${#gone[@]} -eq 3 ]; then die "no node is left"; fi
  sleep 1 &
  wait $! || true
done
