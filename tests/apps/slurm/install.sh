#!/usr/bin/env bash
# Install SLURM and munge from Debian's packages, where they are missing.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin" DEBIAN_FRONTEND=noninteractive
die() { echo "install.sh: $*" >&2; exit 1; }

for command in munged slurmctld slurmd sbatch; do
    command -v "$command" >/dev/null && continue
    command -v apt-get >/dev/null || die "install slurmctld, slurmd, the SLURM commands and munge first"
    sudo=; ((EUID == 0)) || sudo="sudo -n"
    echo "install.sh: installing SLURM and munge"
    { $sudo apt-get update -q && $sudo apt-get install -q -y --no-install-recommends \
        slurmctld slurmd slurm-client munge; } >/dev/null || die "apt-get failed"
    exit 0
done
