#!/usr/bin/env bash
# Start a small SLURM cluster on this host's loopback: one munged, one
# slurmctld and N slurmd daemons, each of which plays one node (n1 ... nN).
# Everything they write lies in one state directory; nothing under /etc or /var
# is used.  Works as root or as an ordinary user (root is needed only to
# install missing packages).  Running it again is harmless.
#
#   usage:  up.sh [-n NODES] [-c CPUS] [-m MIB] [-p PORT] [-k] [STATE_DIR]
#
#     -n  number of nodes                   (3)
#     -c  CPUs that each node claims        (2)  not tied to the real hardware
#     -m  memory that each node claims, MiB (4096)
#     -p  first TCP port; PORT .. PORT+NODES are used (26817)
#     -k  kill jobs that use more memory than they asked for (looked at every 2 s)
#     STATE_DIR  (${TMPDIR:-/tmp}/slurm-loopback)  a short path: it holds Unix sockets
#
#   then:   source STATE_DIR/env.sh     # sets SLURM_CONF for sbatch, squeue ...
#   stop:   down.sh STATE_DIR
#
# Clusters with different ports and state directories can run side by side.
set -euo pipefail
trap 'echo "up.sh: line $LINENO failed" >&2' ERR
export PATH="$PATH:/usr/sbin:/sbin" LC_ALL=C

nodes=3 cpus=2 mem=4096 port=26817 kill=
usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; }
die() { echo "up.sh: $*" >&2; exit 1; }

while getopts n:c:m:p:kh opt; do
    case $opt in
        n) nodes=$OPTARG ;; c) cpus=$OPTARG ;; m) mem=$OPTARG ;; p) port=$OPTARG ;;
        k) kill=yes ;; h) usage; exit 0 ;; *) usage >&2; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
for value in "$nodes" "$cpus" "$mem" "$port"; do
    [[ $value =~ ^[1-9][0-9]*$ ]] || die "not a positive number: '$value'"
done
state=$(realpath -m "${1:-${TMPDIR:-/tmp}/slurm-loopback}")
[[ $state =~ ^[A-Za-z0-9_./-]{1,70}$ ]] || die "STATE_DIR must be short and plain: '$state'"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export SLURM_CONF=$state/slurm.conf

# wait_for SECONDS COMMAND...: poll until COMMAND succeeds.
wait_for() {
    local end=$((SECONDS + $1)); shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || return 1
        sleep 0.2
    done
}
# fail LOG MESSAGE: show the end of a log, stop what was started, give up.
fail() {
    echo "up.sh: $2; end of $1:" >&2
    tail -n 15 "$1" >&2 || true
    "$here/down.sh" "$state" >&2 || true
    exit 1
}
# A daemon is alive if the process in its pid file is one of this cluster's.
alive() { [[ -s $1 ]] && grep -qsF "$state/" "/proc/$(<"$1")/cmdline"; }
ready_nodes() { sinfo -h -N -t idle,alloc,mix,comp -o %N 2>/dev/null | wc -l; }
all_up() {
    local i
    for ((i = 1; i <= nodes; i++)); do alive "$state/run/slurmd-n$i.pid" || return 1; done
    alive "$state/run/munged.pid" && alive "$state/run/slurmctld.pid" &&
        (($(ready_nodes) == nodes))
}

# --- packages ---------------------------------------------------------------
"$here/install.sh"

# --- is it up already? ------------------------------------------------------
mark="# loopback cluster: nodes=$nodes cpus=$cpus mem=$mem port=$port kill=${kill:-no}"
if [[ -e $state ]]; then
    [[ -O $state ]] && [[ -f $state/slurm.conf || -z $(ls -A "$state") ]] ||
        die "$state exists and is not ours"
    if [[ $(head -n 1 "$state/slurm.conf" 2>/dev/null) == "$mark" ]] && all_up; then
        echo "up.sh: already up ($nodes nodes); source $state/env.sh"
        exit 0
    fi
    "$here/down.sh" "$state"          # another shape, or only partly alive
fi

# --- configuration ----------------------------------------------------------
umask 022
mkdir -p "$state" && : >"$state/slurm.conf"
rm -rf "$state"/{ctld,spool,run,log}
mkdir -p "$state"/{ctld,spool,run,log}
[[ -s $state/munge.key ]] || (umask 077; head -c 128 /dev/urandom >"$state/munge.key")
me=$(id -un)
host=$(hostname -s)

# SLURM can be told to listen only on the address that the host's own name has.
# Do so where that is 127.0.0.1; elsewhere it listens on every address, and the
# munge key, which is made here and readable to this user only, guards it.
listen=
addr=$(getent ahostsv4 "$host" | awk 'NR == 1 {print $1}') || addr=
[[ $addr != 127.0.0.1 ]] || listen=CommunicationParameters=NoCtldInAddrAny,NoInAddrAny

gather=JobAcctGatherType=jobacct_gather/none
[[ -z $kill ]] || gather="JobAcctGatherType=jobacct_gather/linux
JobAcctGatherParams=OverMemoryKill
JobAcctGatherFrequency=task=2"

cat >"$state/slurm.conf" <<CONF
$mark
ClusterName=loopback
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
$listen
SlurmUser=$me
SlurmdUser=$me
AuthType=auth/munge
AuthInfo=socket=$state/run/munge.socket
CredType=cred/munge

StateSaveLocation=$state/ctld
SlurmdSpoolDir=$state/spool/%n
SlurmctldPidFile=$state/run/slurmctld.pid
SlurmdPidFile=$state/run/slurmd-%n.pid
SlurmctldLogFile=$state/log/slurmctld.log
SlurmdLogFile=$state/log/slurmd-%n.log

# No cgroups, no accounting, no CPU binding.  The epilog ends what plain process
# tracking misses: processes of a job whose parent has died.
ProctrackType=proctrack/linuxproc
Epilog=$state/epilog.sh
TaskPlugin=task/none
$gather
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
MailProg=/bin/true

# Short delays, for tests.
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
KillWait=5
CompleteWait=0

NodeName=n[1-$nodes] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + nodes))] CPUs=$cpus RealMemory=$mem State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
cat >"$state/epilog.sh" <<EPILOG
#!/bin/sh
# Kill the processes that job \$SLURM_JOB_ID left behind, but not this script.
for env in \$(grep -lzsxF "SLURM_JOB_ID=\$SLURM_JOB_ID" /proc/[0-9]*/environ); do
    grep -zqsxF "SLURM_CONF=$state/slurm.conf" "\$env" || continue
    grep -zqs '^SLURM_SCRIPT_CONTEXT=' "\$env" && continue
    pid=\${env#/proc/}
    kill -9 "\${pid%/environ}" 2>/dev/null
done
exit 0
EPILOG
chmod +x "$state/epilog.sh"
echo "export SLURM_CONF=$state/slurm.conf" >"$state/env.sh"

# --- daemons ----------------------------------------------------------------
munged --origin=127.0.0.1 --key-file="$state/munge.key" \
       --socket="$state/run/munge.socket" \
       --pid-file="$state/run/munged.pid" --seed-file="$state/run/munged.seed" \
       --log-file="$state/log/munged.log" ||
    fail "$state/log/munged.log" "munged did not start"
wait_for 10 test -S "$state/run/munge.socket" ||
    fail "$state/log/munged.log" "munged does not answer"

slurmctld -c -f "$SLURM_CONF" || fail "$state/log/slurmctld.log" "slurmctld did not start"
for ((i = 1; i <= nodes; i++)); do
    mkdir -p "$state/spool/n$i"
    slurmd -N "n$i" -f "$SLURM_CONF" || fail "$state/log/slurmd-n$i.log" "slurmd n$i did not start"
done
wait_for 20 all_up || fail "$state/log/slurmctld.log" "only $(ready_nodes) of $nodes nodes came up"

echo "up.sh: $nodes nodes up; source $state/env.sh"
