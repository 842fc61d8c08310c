# Hessian products of ViT-S profiled and compiled, WRN-28-10 under SGD, each alone on the GPU; a ResNet-18 pair, the two at once; then,
# while its spectra and robustness are measured, four at a time, the five models of source 001 at the lower rate, and what is missing at the higher.
source benchmarks/lease/lease.sh
small=small paper=paper tiny="" images=1000 seeds="0 1 2"
if [ -n "${REHEARSE:-}" ]; then small=smoke paper=smoke tiny=--tiny images=100 seeds="0 1"; fi

study() { # NAME SECONDS STUDY SCALE ARGUMENTS…
  job "$1" "$2" "$PY" -m steppe study run "$3" --scale "$4" --out "$R/$3-$4" "${@:5}"
}
job profile 60 "$PY" benchmarks/hessian.py --precision tf32 --models vit_s_p4 --ways kept --examples 500 --iterations 5 --profile --out "$O/hessian-profile.csv" $tiny
job compiled 200 "$PY" benchmarks/hessian.py --precision tf32 --models vit_s_p4 --ways compiled --iterations 60 --out "$O/hessian-compiled.csv" $tiny
need cifar10
study wrn 330 wrn $paper --only training=SGD --only model=WRN --only seed=0 --workers 1
study resnet18 220 resnet18 $small --only data=CIFAR-10 --only seed=0 --workers 2
share
(
  cut="--set lambda_max.examples=$images --set trace.examples=$images --set spectrum.examples=$images"
  for run in "$R/resnet18-$small"/*-s0-*/; do
    job "tf32-$(basename "$run")" 100 "$PY" -m steppe geometry "$run" --only lambda_max --set lambda_max.parts=whole --set lambda_max.precision=tf32 --set lambda_max.examples=$images
    job "curvature-$(basename "$run")" 260 "$PY" -m steppe geometry "$run" --only lambda_max,trace,spectrum,noise --set noise.noise_sigma=0.003 --set lambda_max.parts=whole --set trace.parts=whole $cut
  done
  pair=("$R/resnet18-$small"/*-s0-*/)
  job between 100 "$PY" -m steppe geometry "${pair[0]}" --with "${pair[1]}" --only between --set between.examples=$images
  job robustness 200 "$PY" -m steppe evaluate "$R/resnet18-$small" --set corruptions.examples=2000 --set attacks.examples=2000
) &
need cifar100
for seed in $seeds; do study "five-s$seed" 600 five-models $small --only rate=0.0003 --only seed=$seed --workers 4; done
study five-8l 300 five-models $small --only rate=0.001 --only seed=2 --only "model=ViT (8L-8H-512)" --workers 2
study five-6l 200 five-models $small --only rate=0.001 --only seed=2 --only "model=ViT (6L-8H-384)" --only training=SAM
wait
touch "$O/ended"
