# Source 003 in miniature on CIFAR-10: what is missing of seed 0 (results/sharp-minima has the other four, wholly measured), then its
# table with seeds 1 and 2, as far as it comes. All in one folder, which several processes may share; CIFAR-10 alone travels.
source benchmarks/lease/lease.sh
small=small
if [ -n "${REHEARSE:-}" ]; then small=smoke; fi

sharp() { # NAME SECONDS WORKERS ARGUMENTS…
  job "$1" "$2" "$PY" -m steppe study run sharp-minima --scale $small --out "$R/sharp-minima-$small" --workers "$3" "${@:4}"
}
share
need cifar10
sharp seed0 1600 4 --only seed=0 --only training=SAM --only training=AUG --only "training=SGD + SAM" --only "training=twice the epochs" &
{
  sharp mixer 600 1 --only seed=0 --only model=Mixer --only training=plain
  sharp seed1 1600 2 --only seed=1 --only model=ResNet --only model=ViT --only model=Mixer --only training=plain --only training=SAM
} &
wait
[ $small = smoke ] || sharp seed2 1600 4 --only seed=2 --only model=ResNet --only model=ViT --only model=Mixer --only training=plain --only training=SAM
touch "$O/ended"
