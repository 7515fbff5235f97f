#!/usr/bin/env bash
# full-isr BOOTSTRAP: waits until no partition of the cluster lacks a replica in sync, twice in a row.
#
# Twice, because a broker that has just come back is counted before its replicas are looked at. A tool
# that fails counts as "not yet". Exit code 1 after FULL_ISR_TRIES looks, FULL_ISR_PAUSE seconds apart.
set -uo pipefail
bootstrap=${1:?full-isr BOOTSTRAP}
seen=0
for ((try = 1; try <= ${FULL_ISR_TRIES:-120}; try++)); do
  if behind=$(kafka-topics.sh --bootstrap-server "$bootstrap" --describe --under-replicated-partitions) &&
    [[ -z $behind ]]; then
    seen=$((seen + 1))
  else
    seen=0
  fi
  ((seen == 2)) && exit 0
  sleep "${FULL_ISR_PAUSE:-10}"
done
echo "still behind: ${behind:-the tool failed}" >&2
exit 1
