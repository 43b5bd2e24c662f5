#!/bin/bash
# title: fio writes and verifies: buffered, mapped, direct, with fsync
# runs: 4.1-dir 4.2-dir
# timeout: 500
. /share/scenario-lib.sh
begin
m=/mnt/data
need "mount" mnt /data $m
size=$(amount 4M 64M)
# work NAME OPTION...: writes a file of checked blocks and verifies it, and once more after everything cached is forgotten.
work() {
    local name=$1; shift
    local all=(--name="$name" --filename="$m/$name" --size="$size" --verify=crc32c --verify_fatal=1 --thread
        --randseed=7 --allrandrepeat=1 --output=/tmp/fio.log "$@")
    fio "${all[@]}" --do_verify=1 >/tmp/fio.err 2>&1 || { cat /tmp/fio.err /tmp/fio.log; return 1; }
    again $m /data
    # Sequential work leaves every block as it was written last: it can be verified by itself.
    fio "${all[@]}" --verify_only=1 >/tmp/fio.err 2>&1 || { cat /tmp/fio.err /tmp/fio.log; return 1; }
    same "$(numfmt --from=iec "$size")" "$(stat -c %s "$m/$name")" size
}
check "buffered, in sequence" work seq --rw=write --bs=64k
check "buffered, at random, fsync every 32 blocks" work random --rw=randwrite --bs=4k --fsync=32
check "mapped" work mapped --rw=randwrite --bs=4k --ioengine=mmap --fsync=64
check "direct, one at a time" work direct --rw=randwrite --bs=16k --direct=1
check "direct, eight at once" work aio --rw=randwrite --bs=32k --direct=1 --ioengine=libaio --iodepth=8
# fio reads such a file before it is written where it cannot allocate it first (4.1), and calls its end an error, whatever
# the server: it gets one of full size.
odd() { truncate -s "$size" "$m/odd" && work odd "$@"; }
check "O_SYNC, odd sizes" odd --rw=write --bsrange=1k-50k --bs_unaligned=1 --sync=1
check "reads and writes mixed, fdatasync" work mixed --rw=randrw --rwmixread=40 --bs=8k --fdatasync=16
# Four at once, each through another way, while the server goes and comes.
storm() {
    local n p=() way
    for n in 1 2 3 4; do
        case $n in
            1) way="--ioengine=mmap --bs=4k --fsync=64" ;;
            2) way="--direct=1 --bs=16k --ioengine=libaio --iodepth=4" ;;
            3) way="--bs=4k --fsync=16" ;;
            4) way="--bs=128k" ;;
        esac
        # shellcheck disable=SC2086
        fio --name=storm$n --filename=$m/storm$n --size="$(amount 4M 32M)" --loops="$(amount 2 4)" --rw=randwrite --verify=crc32c \
            --verify_fatal=1 --do_verify=1 --randseed=$n --output=/tmp/storm$n.log $way >/tmp/storm$n.err 2>&1 & p+=($!)
    done
    for n in 1 2 3 4; do wait "${p[n - 1]}" || { cat /tmp/storm$n.err /tmp/storm$n.log; return 1; }; done
}
check "four ways at once while the server is killed and ended" shaken "$(amount 2 8)" storm
check "unmount" umount $m
finish
