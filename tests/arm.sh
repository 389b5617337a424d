#!/bin/sh
# Tests on an emulated 64-bit ARM, as root on Debian with qemu-user-static and debootstrap:
#     sh tests/arm.sh tests/inference/test_kernels_jit_linear.py -m "not slow"
# The first run makes var/arm64: Debian's Python there, and the wheels of requirements.txt for it. Emulation takes ten to
# thirty times as long; compiling a pass takes minutes, once. ARM_CPU names a CPU of QEMU's (default: all features).
set -eu
cd "$(dirname "$0")/.."
root=$PWD/var/arm64
python=$root/usr/bin/python3.11

if [ ! -f "$root/ready" ]; then
    debootstrap --arch=arm64 --foreign --variant=minbase --include=python3 bookworm "$root"
    for package in "$root"/var/cache/apt/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
    grep -hE "^(hypothesis|pytest|pytest-asyncio|pytest-xdist|safetensors)==" requirements-dev.txt >"$root/tools.txt"
    .venv/bin/python -m pip install --target "$root/usr/local/lib/python3.11/dist-packages" --only-binary=:all: \
        --implementation cp --python-version 3.11 --abi cp311 --abi abi3 --abi none \
        --platform manylinux2014_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux_2_24_aarch64 \
        --platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 --platform manylinux_2_34_aarch64 \
        -r requirements.txt -r "$root/tools.txt"
    # Processes that a test starts find the emulator as their interpreter.
    mv "$python" "$python.real"
    printf '#!/bin/sh\nexec qemu-aarch64-static ${ARM_CPU:+-cpu $ARM_CPU} -L %s -0 %s %s.real "$@"\n' \
        "$root" "$python" "$python" >"$python"
    chmod +x "$python"
    # What a Neoverse N1 says of itself; the emulator would show the file of this machine.
    mkdir -p "$root/proc"
    printf '%s\n' "processor : 0" "Features : fp asimd aes pmull sha1 sha2 crc32 atomics fphp asimdhp asimddp" \
        "CPU implementer : 0x41" "CPU architecture: 8" "CPU variant : 0x3" "CPU part : 0xd0c" >"$root/proc/cpuinfo"
    touch "$root/ready"
fi
exec "$python" -m pytest -o addopts=-ra -p no:django -p no:cacheprovider "$@"
