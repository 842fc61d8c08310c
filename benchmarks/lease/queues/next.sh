# Alone on the GPU, one run at a time, for times count and measuring beside training slows it fivefold (docs/experiments.md): what is
# missing of seed 0 of SAM's relatives, the Swin that is fine-tuned, and what is missing of seed 0 of source 003 in miniature.
# CIFAR-100 travels first, CIFAR-10 while it is trained on.
source benchmarks/lease/lease.sh
small=small
if [ -n "${REHEARSE:-}" ]; then small=smoke; fi

study() { # NAME SECONDS STUDY ARGUMENTS…
  job "$1" "$2" "$PY" -m steppe study run "$3" --scale $small --out "$R/$3-$small" --workers 1 "${@:4}"
}
need cifar100
study relatives-vit 700 relatives --only seed=0 --only model=ViT --only training=LookSAM --only training=MSAM --only training=F-SAM \
  --only training=SAM-ON --only training=AE-SAM --only training=quarter --only "training=every 5th" --only "training=last quarter"
study relatives-resnet 200 relatives --only seed=0 --only model=ResNet-18 --only training=LookSAM
need cifar10
study swin 700 swin-finetune
study sam 900 sharp-minima --only seed=0 --only training=SAM --only model=Mixer --only model=ViT
study single 1600 sharp-minima --only seed=0 --only "training=SGD + SAM" --only "training=twice the epochs" --only training=AUG
touch "$O/ended"
