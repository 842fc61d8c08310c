# What is missing of the table of source 003 in miniature with seed 0 (four runs at once), then SAM's relatives at equal wall-clock,
# alone on the GPU, then the single runs of source 003. CIFAR-10 travels first, CIFAR-100 while it is trained on.
source benchmarks/lease/lease.sh
small=small
if [ -n "${REHEARSE:-}" ]; then small=smoke; fi

sharp() { # NAME SECONDS WORKERS ARGUMENTS…
  job "$1" "$2" "$PY" -m steppe study run sharp-minima --scale $small --out "$R/sharp-minima-$small" --workers "$3" --only seed=0 "${@:4}"
}
share
need cifar10
sharp sam 560 3 --only training=SAM &
sharp mixer 560 1 --only model=Mixer --only training=plain &
wait
need cifar100
alone
job relatives 1400 "$PY" -m steppe study run relatives --scale $small --out "$R/relatives-$small" --workers 1 --only seed=0
share
sharp single 1600 4 --only training=AUG --only "training=SGD + SAM" --only "training=twice the epochs"
touch "$O/ended"
