# Hessian products of ResNet-18 and ViT-S alone on the GPU; then, sharing it: WRN-28-10 under SGD, a ResNet-18 pair with its
# spectra and robustness, and the five models of source 001.
source benchmarks/lease/lease.sh
small=small paper=paper tiny="" images=1000
if [ -n "${REHEARSE:-}" ]; then small=smoke paper=smoke tiny=--tiny images=100; fi

products() { # NAME SECONDS ARGUMENTS…
  job "hessian-$1" "$2" "$PY" benchmarks/hessian.py --precision tf32 --out "$O/hessian-$1.csv" "${@:3}" $tiny
}
products resnet18 120 --models resnet18 --ways kept --iterations 100
products vit-compiled 230 --models vit_s_p4 --ways compiled --iterations 100
products vit-half 110 --models vit_s_p4 --ways kept torch fused --examples 2500 --iterations 15
products vit-kept 60 --models vit_s_p4 --ways kept --iterations 10
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True products vit-expandable 60 --models vit_s_p4 --ways kept --iterations 10

share
study() { # NAME SECONDS STUDY SCALE ARGUMENTS…
  job "$1" "$2" "$PY" -m steppe study run "$3" --scale "$4" --out "$R/$3-$4" "${@:5}"
}
need cifar10
study wrn 420 wrn $paper --only training=SGD --only model=WRN --only seed=0 --workers 1 &
(
  study resnet18 300 resnet18 $small --only data=CIFAR-10 --only seed=0 --workers 2
  cut="--set lambda_max.examples=$images --set trace.examples=$images --set spectrum.examples=$images"
  for run in "$R/resnet18-$small"/*-s0-*/; do
    job "tf32-$(basename "$run")" 100 "$PY" -m steppe geometry "$run" --only lambda_max --set lambda_max.parts=whole --set lambda_max.precision=tf32 --set lambda_max.examples=$images --json
  done
  for run in "$R/resnet18-$small"/*-s0-*/; do
    job "curvature-$(basename "$run")" 240 "$PY" -m steppe geometry "$run" --only lambda_max,trace,spectrum --set lambda_max.parts=whole --set trace.parts=whole $cut &
  done
  wait
  job robustness 200 "$PY" -m steppe evaluate "$R/resnet18-$small" --set corruptions.examples=2000 --set attacks.examples=2000
) &
need cifar100
for seed in 0 1 2; do study "five-s$seed" 1200 five-models $small --only seed=$seed --workers 5; done
wait
touch "$O/ended"
