# Alone on the GPU, one run at a time, for times count and measuring beside training slows it fivefold (dev/experiments.md): what is
# missing of seed 0 of SAM's relatives, epochs of the five models and of accumulation timed alone, the Swin that is fine-tuned, and what is
# missing of seed 0 of source 003 in miniature. CIFAR-100 travels first, CIFAR-10 while it is trained on. Pack first, in this order:
#   lease.sh pack cifar100/…      lease.sh timed $(.venv/bin/python benchmarks/lease/timed.py)
# Home again, the cost.json of five-models/ and accumulation/ go over those in results/, and `steppe study compare` reads them.
source benchmarks/lease/lease.sh
small=small seconds=2
if [ -n "${REHEARSE:-}" ]; then small=smoke seconds=0.1; fi

study() { # NAME SECONDS STUDY ARGUMENTS…
  job "$1" "$2" "$PY" -m steppe study run "$3" --scale $small --out "$R/$3-$small" --workers 1 "${@:4}"
}
need cifar100
study relatives-vit 700 relatives --only seed=0 --only model=ViT --only training=LookSAM --only training=MSAM --only training=F-SAM \
  --only training=SAM-ON --only training=AE-SAM --only training=quarter --only "training=every 5th" --only "training=last quarter"
study relatives-resnet 200 relatives --only seed=0 --only model=ResNet-18 --only training=LookSAM
job timed-five 300 "$PY" -m steppe cost --seconds $seconds "$R"/five-models/*/
need cifar10
study swin 700 swin-finetune
study sam 900 sharp-minima --only seed=0 --only training=SAM --only model=Mixer --only model=ViT
job timed-swin 420 "$PY" -m steppe cost --seconds $seconds "$R"/accumulation/*/
study single 1600 sharp-minima --only seed=0 --only "training=SGD + SAM" --only "training=twice the epochs" --only training=AUG
touch "$O/ended"
