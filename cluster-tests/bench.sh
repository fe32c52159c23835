#!/bin/bash
# Throughput, latency and cost of one Warren node and of three, each case repeated, the median printed.
#   bench.sh PATH/TO/warren
# BENCH_SECONDS (10) and BENCH_ROUNDS (3) set length and repetitions; BENCH_CASES picks among "small large many priorities", and among
# the cases about disks: "drained backlog spread1 spread10 spread1000". BENCH_NODES ("1 3") picks the clusters.
# PEERS_SH=path/to/peers.sh BENCH_PEERS="rabbit1 rabbit3" measures other brokers in the same run, one at a time.
# Syncs are counted where Linux's perf is installed and may trace system calls.
set -euo pipefail
warren=${1:?usage: bench.sh PATH/TO/warren}
here=$(cd "$(dirname "$0")" && pwd)
seconds=${BENCH_SECONDS:-10}
rounds=${BENCH_ROUNDS:-3}
cases=${BENCH_CASES:-small large many}
work=$(mktemp -d "${TMPDIR:-/tmp}/warren-bench-XXXXXX")
running=()

clean() {
  for pid in "${running[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${running[@]}"; do wait "$pid" 2>/dev/null || true; done
  running=()
}
trap 'clean; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

options_of() {
  case $1 in
    small) echo "--size 12 --producers 1 --consumers 1 --queues 1" ;;
    large) echo "--size 1024 --producers 1 --consumers 1 --queues 1" ;;
    # As small, with ten priorities in turn.
    priorities) echo "--size 12 --producers 1 --consumers 1 --queues 1 --priorities 10" ;;
    # What is written per byte published: 20 and 30 MB/s, with and without a consumer that keeps up.
    drained) echo "--size 1024 --producers 1 --consumers 1 --queues 1 --rate 20000" ;;
    backlog) echo "--size 1024 --producers 1 --queues 1 --no-consume --rate 30000" ;;
    # The same load spread over more and more groups.
    spread1) echo "--size 100 --producers 1 --consumers 1 --queues 1 --rate 5000" ;;
    spread10) echo "--size 100 --producers 1 --consumers 1 --queues 10 --rate 5000" ;;
    spread1000) echo "--size 100 --producers 1 --consumers 1 --queues 1000 --rate 5000 --warmup 10" ;;
    many) echo "--size 12 --producers 4 --consumers 4 --queues 10" ;;
    *) echo "bench: unknown case $1" >&2; exit 64 ;;
  esac
}

# while_counting FILE PIDS COMMAND...: runs the command; the file gets the processes' syncs, one event a line
while_counting() {
  local file=$1 pids=$2 began=$EPOCHREALTIME
  shift 2
  if $counts_syncs; then
    perf stat -x, -o "$file" -e syscalls:sys_enter_fsync,syscalls:sys_enter_fdatasync -p "$pids" -- "$@"
    awk -v now="$EPOCHREALTIME" -v began="$began" 'BEGIN { print "seconds," now - began }' >>"$file"
  else
    "$@"
  fi
}
counts_syncs=false
perf stat -e syscalls:sys_enter_fsync -a true >/dev/null 2>&1 && counts_syncs=true

# measure TARGET URIS PIDS: every case, the run with the median consumed rate as one line
measure() {
  local target=$1 uris=$2 pids=$3 case round
  for case in $cases; do
    for round in $(seq "$rounds"); do
      # shellcheck disable=SC2046 # options are words
      while_counting "$work/$round.syncs" "$pids" "$warren" perf amqp091 --json --quiet --window 1000 --prefetch 1000 --duration "$seconds" --uri "$uris" \
        --pids "$pids" $(options_of "$case") >"$work/$round.json"
    done
    python3 - "$target" "$case" "$work"/[0-9]*.json <<'END'
import json, sys

target, case, *files = sys.argv[1:]
runs = [json.load(open(file)) for file in files]
if any(run["errors"] or run["nacked"] for run in runs):
    print(f"{target} {case}: errors in a run: {[run['errors'] for run in runs]}", file=sys.stderr)
for run, file in zip(runs, files):
    try:
        lines = [line.strip().split(",") for line in open(file.removesuffix(".json") + ".syncs") if "," in line]
        took = next(float(line[1]) for line in lines if line[0] == "seconds")
        # An event that never happened is `<not counted>`.
        counts = [int(line[0]) for line in lines if len(line) > 2 and line[0].isdigit()]
        run["syncs_per_second"] = sum(counts) / took
    except (OSError, StopIteration):
        pass
run = sorted(runs, key=lambda run: (run["consumed_per_second"], run["confirmed_per_second"]))[len(runs) // 2]
confirm, cpu = run.get("confirm_us") or {}, sum(p["cpu_seconds"] for p in run["watched"])
resident = max((p["resident_bytes"] for p in run["watched"]), default=0) / 1e6
syncs = f"{run['syncs_per_second']:.0f}" if "syncs_per_second" in run else "-"
published = run["confirmed_per_second"] * run["seconds"] * run["size"]
written = sum(p.get("written_bytes", 0) for p in run["watched"]) / max(len(run["watched"]), 1)
ratio = f"{written / published:.2f}" if published and written else "-"
ms = lambda name: f"{confirm[name] / 1000:.2f}" if name in confirm else "-"
print(f"{target:<10} {case:<10} {run['consumed_per_second']:>10.0f} {run['confirmed_per_second']:>10.0f} "
      f"{ms('p50'):>9} {ms('p99'):>9} {cpu:>8.2f} {syncs:>8} {resident:>9.0f} {ratio:>8}", flush=True)
END
    rm -f "$work"/[0-9]*
  done
}

# warren_nodes COUNT: nodes on ports of their own, data in the work folder; sets $uris and $pids
warren_nodes() {
  local count=$1 folder=$work/warren$1 i j
  mkdir -p "$folder/data"
  (umask 077 && echo "bench-$RANDOM$RANDOM" >"$folder/data/.erlang.cookie")
  uris="" pids=""
  for i in $(seq "$count"); do
    {
      echo "listeners.tcp.1 = 127.0.0.1:$((15680 + i))"
      echo "peer.ip = 127.0.0.1"
      echo "peer.port = $((15690 + i))"
      echo "cluster_formation.peer_discovery_backend = classic_config"
      for j in $(seq "$count"); do echo "cluster_formation.classic_config.nodes.$j = b$j@localhost:$((15690 + j))"; done
    } >"$folder/b$i.conf"
    env -u WARREN_DATA_DIR "$warren" server --config "$folder/b$i.conf" --data-dir "$folder/data" --node "b$i@localhost" \
      >"$folder/b$i.log" 2>&1 </dev/null &
    running+=($!)
    pids+=${pids:+,}$!
    uris+=${uris:+,}amqp://guest:guest@127.0.0.1:$((15680 + i))/%2f
  done
  for i in $(seq "$count"); do
    for _ in $(seq 600); do
      (exec 3<>"/dev/tcp/127.0.0.1/$((15680 + i))") 2>/dev/null && continue 2
      sleep 0.1
    done
    tail -n 20 "$folder/b$i.log" >&2
    exit 1
  done
  sleep 2
}

echo "persistent messages, window 1000, prefetch 1000; $seconds s a run, median of $rounds; times in ms, memory in MB, bytes written by a node per byte of body"
printf '%-10s %-10s %10s %10s %9s %9s %8s %8s %9s %8s\n' broker case consumed/s confirm/s p50 p99 cpu_s sync/s resident written
for count in ${BENCH_NODES:-1 3}; do
  warren_nodes "$count"
  measure "warren$count" "$uris" "$pids"
  clean
  rm -rf "$work/warren$count"
done
for peer in ${BENCH_PEERS:-}; do
  "${PEERS_SH:?set PEERS_SH to the script that starts peers}" start "$peer" >/dev/null
  uris=$("$PEERS_SH" url "$peer" | sed -E 's#([^,]+)#amqp://guest:guest@\1/%2f#g')
  measure "$peer" "$uris" "$("$PEERS_SH" pids "$peer")"
  "$PEERS_SH" wipe "$peer"
done
