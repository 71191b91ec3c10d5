#!/bin/sh
# Runs pip: its words go into a log, a terminal sees how far it is, and the last lines where it fails. install.sh LOG COMMAND...
log=$1
shift
"$@" >"$log" 2>&1 &
pip=$!
trap 'kill "$pip"; exit 130' INT TERM
while kill -0 "$pip" 2>/dev/null; do
    sleep 1
    step=$(grep -oE '^(Collecting|Downloading|Installing)' "$log" | tail -n 1)
    [ ! -t 1 ] || printf '\r     %s: %s packages ' "${step:-Preparing}" "$(grep -c '^Collecting' "$log")"
done
[ ! -t 1 ] || printf '\r\033[K'
wait "$pip" || { tail -n 15 "$log" >&2; echo "pip failed; all it said: $log" >&2; exit 1; }
