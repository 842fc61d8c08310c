# What is missing of the five models of source 001, and source 003 in miniature on CIFAR-10, seed 0, with all its measures: side by side,
# so that the GPU has work while others compile. CIFAR-100 travels first.
source benchmarks/lease/lease.sh
small=small seed=2
if [ -n "${REHEARSE:-}" ]; then small=smoke seed=1; fi

study() { # NAME SECONDS STUDY SCALE ARGUMENTS…
  job "$1" "$2" "$PY" -m steppe study run "$3" --scale "$4" --out "$R/$1-$4" "${@:5}"
}
share
need cifar100
study five-models 1200 five-models $small --only seed=$seed --only rate=0.0003 --only model=ResNet-18 --only "model=ViT (4L-4H-256)" \
  --only "model=ViT (6L-8H-384)" --only "model=ViT (8L-8H-512)" --workers 4 &
{
  study five-8l 900 five-models $small --only seed=$seed --only rate=0.001 --only "model=ViT (8L-8H-512)" --workers 2
  study five-6l 600 five-models $small --only seed=$seed --only rate=0.001 --only "model=ViT (6L-8H-384)" --only training=SAM
} &
need cifar10
study sharp-minima 1600 sharp-minima $small --only seed=0 --workers 4
wait
touch "$O/ended"
