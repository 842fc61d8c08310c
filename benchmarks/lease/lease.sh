#!/usr/bin/env bash
# Long work on a GPU machine that is lent for half an hour, has no network, and takes a copy of this tree with each call.
#
#   here:   benchmarks/lease/lease.sh parts /tmp/parts         cut both CIFAR sets into parts of 17 MB (once; six minutes)
#           benchmarks/lease/lease.sh wheels                   fetch what the machine's Python lacks, into .device_wheels
#           benchmarks/lease/lease.sh aside | back             results/ out of the way of the copy, and back
#           benchmarks/lease/lease.sh pack cifar10/train_0 …   put these parts into .device_data, the next call's luggage
#           benchmarks/lease/lease.sh timed STUDY/RUN …        and these runs of results/, without weights: `steppe cost` times their steps there
#   there:  … begin QUEUE      take the tree, the wheels and the parts; start queues/QUEUE.sh in the background
#           … take [SET]       take more parts; with SET: these were its last, put it together
#           … wait SECONDS     until the queue has ended; what it made goes to $OUT, without weights, as at most eight files
#                              (540, 540 and 590 use up the half hour; what nobody waits for is handed back)
#
# A queue sources this file and calls `job NAME SECONDS COMMAND…` and `need SET`. REHEARSE=1 runs it here, on a CPU: set T, R, O, D, PY.
set -uo pipefail
T=${T:-/root/tree} R=${R:-/root/runs} O=${O:-/root/logs} D=${D:-/root/data} PARTS=${PARTS:-/root/parts} PY=${PY:-python3}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export STEPPE_DATA=$D PYTHONUNBUFFERED=1 PYTHONPATH=$T/src
[ -n "${REHEARSE:-}" ] || PYTHONPATH+=:$T/.device_wheels # of the Python there

luggage() { # the parts that travelled, to where the next call does not replace them
  mkdir -p "$PARTS" "$D" "$R" "$O"
  cp -r .device_data/. "$PARTS/"
}

job() { # NAME SECONDS COMMAND…: its output, exit status and seconds are kept
  local name=$1 limit=$2 start=$SECONDS
  shift 2
  timeout --signal=INT --kill-after=20 "$limit" "$@" >"$O/$name.log" 2>&1
  echo "$name rc=$? $((SECONDS - start)) s of $limit" | tee -a "$O/jobs.txt"
}

need() { until [ -e "$D/$1.npz" ]; do sleep 1; done; } # SET: wait until it is put together

case "${1:-}" in
parts)
  for set in cifar10 cifar100; do "$PY" "$HERE/../../../shared/data/prepare" --parts "$2/$set" $set; done
  ;;
wheels)
  "$PY" -m pip install --quiet --target .device_wheels --python-version 3.12 --only-binary=:all: --no-deps --constraint constraints.txt \
    pydantic pydantic_core annotated-types typing-inspection typing_extensions jinja2 markupsafe tomli_w nvidia-ml-py
  rm -rf .device_wheels/share
  find .device_wheels -name __pycache__ -prune -exec rm -rf {} +
  ;;
aside) mkdir -p /tmp/aside && mv results/*/ /tmp/aside/ ;;
back) mv /tmp/aside/*/ results/ ;;
pack)
  rm -rf .device_data && mkdir .device_data && cp "$HERE/../../../shared/data/prepare" .device_data/
  git rev-parse --short HEAD >.device_data/commit
  shift
  for part in "$@"; do mkdir -p ".device_data/$(dirname "$part")" && cp "/tmp/parts/$part"* ".device_data/$(dirname "$part")/"; done
  du -sm .device_data
  ;;
timed)
  shift
  [ $# -gt 0 ] || { echo "no runs are named"; exit 1; }
  for run in "$@"; do
    from=results/$run
    [ -d "$from" ] || from=/tmp/aside/$run
    mkdir -p ".device_data/timed/$run" && cp "$from"/{config.toml,data.json,summary.json,metrics.jsonl,cost.json} ".device_data/timed/$run/" || exit 1
  done
  ;;
begin)
  luggage
  [ ! -d "$PARTS/timed" ] || cp -r "$PARTS/timed/." "$R/"
  mkdir -p "$T" && cp -r . "$T/"
  export STEPPE_COMMIT=$(cat "$PARTS/commit")
  cd "$T" && setsid bash "benchmarks/lease/queues/$2.sh" >"$O/queue.log" 2>&1 </dev/null &
  sleep 2
  nvidia-smi --query-gpu=name,memory.used --format=csv,noheader
  ;;
take)
  luggage
  if [ -n "${2:-}" ]; then
    mkdir -p "$D/part-$2"
    setsid bash -c "'$PY' '$PARTS/prepare' --join '$PARTS/$2' '$D/part-$2' $2 && mv '$D/part-$2/$2.npz' '$D/'" >"$O/join-$2.log" 2>&1 </dev/null &
  fi
  ;;
wait)
  for ((second = 0; second < $2; second++)); do
    [ -e "$O/ended" ] && break
    sleep 1
  done
  cat "$O/jobs.txt"
  tail -n 2 "$O"/*.log
  for run in "$R"/*/*/metrics.jsonl; do echo "$(dirname "$run") $(tail -n 1 "$run" | cut -c1-14) $(cd "$(dirname "$run")" && ls | tr '\n' ' ')"; done
  tar czf "$OUT/out.tgz" -C "$O" .
  for study in "$R"/*/; do
    tar czf "$OUT/$(basename "$study").tgz" -C "$R" --exclude='*.safetensors' --exclude='*.pt' --exclude='checkpoint*' --exclude='*.html' "$(basename "$study")"
  done
  ls -la "$OUT"
  ;;
esac
