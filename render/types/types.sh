#!/bin/sh
# The digest of every type that the objects on standard input (JSON) define, one
# a line: "group/version kind digest". Needs jq and coreutils; TYPES.md explains.
jq -r -f "$(dirname "$0")/types.jq" |
while read -r type kind form; do
  digest=$(printf %s "$form" | sha256sum | cut -c1-64 | tr a-f A-F | basenc -d --base16 | base64)
  printf '%s %s h1:%s\n' "$type" "$kind" "$digest"
done
