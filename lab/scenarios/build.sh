#!/bin/bash
# title: a C project of some hundred files is built by make -j4
# runs: 4.1-dir 4.2-dir
# timeout: 500
# mem: 1500M
. /share/scenario-lib.sh
begin
m=/mnt/data
need "mount" mnt /data $m
cat >/tmp/project.py <<'PY'
# project.py DIR N: N modules in folders of their own, each with a header that others include; prints what the
# program is to print.
import os, random, sys
top, n, r = sys.argv[1], int(sys.argv[2]), random.Random(11)
os.makedirs(top + "/include")
values, total = [], 0
def write(name, text):
    with open(os.path.join(top, name), "w") as f: f.write(text)
for i in range(n):
    folder = "part%d" % (i % 9)
    os.makedirs(os.path.join(top, folder), exist_ok=True)
    uses = sorted(r.sample(range(i), min(i, 3)))
    a, b = r.randrange(1, 1000), r.randrange(1, 1000)
    write("include/m%d.h" % i, "#ifndef M%d\n#define M%d\n#define M%d_OWN %du\nunsigned m%d(unsigned x);\n#endif\n" % (i, i, i, a, i))
    lines = ["#include <stdio.h>", "#include <string.h>"] + ['#include "m%d.h"' % k for k in uses + [i]]
    lines += ["static unsigned turn%d(unsigned x) { return (x << 5) ^ (x >> 3) ^ %du; }" % (j, b + j) for j in range(12)]
    lines += ["unsigned m%d(unsigned x) {" % i, "    unsigned v = x * 31u + M%d_OWN;" % i]
    lines += ["    v ^= M%d_OWN;" % k for k in uses] + ["    v += turn%d(v);" % j for j in range(12)] + ["    return v;", "}"]
    write("%s/m%d.c" % (folder, i), "\n".join(lines) + "\n")
    values.append((a, b, uses))
write("main.c", "#include <stdio.h>\n" + "".join('#include "m%d.h"\n' % i for i in range(n)) +
      "int main(void) {\n    unsigned v = 1;\n" + "".join("    v = m%d(v);\n" % i for i in range(n)) + '    printf("%u\\n", v);\n    return 0;\n}\n')
write("Makefile", """CC = tcc
SRC = main.c $(wildcard part*/*.c)
OBJ = $(SRC:.c=.o)
prog: libparts.a main.o
	$(CC) -o $@ main.o libparts.a
libparts.a: $(filter-out main.o,$(OBJ))
	$(CC) -ar rcs $@ $^
%.o: %.c
	$(CC) -Iinclude -MD -MF $(@:.o=.d) -c -o $@ $<
clean:
	find . -name '*.[oda]' -delete; rm -f prog
-include $(OBJ:.o=.d)
""")
v, mask = 1, 0xffffffff
for a, b, uses in values:
    v = (v * 31 + a) & mask
    for k in uses: v ^= values[k][0]
    for j in range(12): v = (v + (((v << 5) & mask) ^ (v >> 3) ^ (b + j))) & mask
print(v)
PY
files=$(amount 150 600)
make_project() { python3 /tmp/project.py $m/project "$files" >/tmp/wanted; }
check "$files modules are written" make_project
build() { cd $m/project || return; make -j4 >/tmp/make.log 2>&1 || { tail -n 5 /tmp/make.log; return 1; }; same "$(cat /tmp/wanted)" "$(./prog)" "the program's output"; }
check "make -j4, and the program is right" build
again_nothing() { make -q -C $m/project; }
check "a second make finds nothing to do" again_nothing
# Only what includes the header is compiled again: the times are right.
touched() {
    local users; cd $m/project || return; sleep 1.1; touch include/m5.h
    users=$(grep -l '"m5.h"' main.c part*/*.c | sort | tr '\n' ' ')
    make -j4 >/tmp/make.log 2>&1
    same "$users" "$(grep -o '[^ ]*\.c$' /tmp/make.log | sort | tr '\n' ' ')" "compiled"
    same "$(cat /tmp/wanted)" "$(./prog)" "the program's output"
}
check "after a header was touched its users are compiled, and no more" touched
clean() { cd $m/project || return; make -s clean; same "" "$(find . -name '*.[oda]' -o -name prog)"; }
check "make clean" clean
check "make -j4 while the server is killed and ended" shaken "$(amount 2 6)" build
afterwards() { again $m /data; cd $m/project || return; make -q; same "$(cat /tmp/wanted)" "$(./prog)" "the program's output"; }
check "all of it is there after a new mount" afterwards
check "unmount" umount $m
finish
