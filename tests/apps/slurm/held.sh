#!/usr/bin/env bash
# A SLURM for as long as somebody holds this script's standard input open: it
# brings one up, says "up", waits for the end of its input and takes it down,
# with all its jobs and its state directory.  So SLURM ends when who started
# it ends, however that is.
#
#   usage:  held.sh STATE_DIR [OPTIONS of up.sh]
#   try:    held.sh /tmp/try </dev/null
set -uo pipefail
trap : INT HUP TERM   # not ignored: jobs would inherit that
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
state=$1; shift

"$here/up.sh" "$@" "$state" >/dev/null </dev/null && echo up && exec >/dev/null && cat
came=$?
"$here/down.sh" "$state" >/dev/null </dev/null
went=$?
rm -rf "$state"
exit $((came || went))
