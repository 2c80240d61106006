#!/usr/bin/env bash
# demo_images.sh MILLPOND DIR: serves image search with DIR/pictures in its collection "pictures", until Ctrl-C.
set -euo pipefail
millpond=$1 dir=$2
# Send the images to this server, not to one named in the environment.
unset MILLPOND_URL

"$millpond" serve "$dir/models" --collections-dir "$dir/collections" &
server=$!
trap 'kill -TERM "$server" 2>/dev/null || true; wait "$server" || true' EXIT
trap 'exit 0' INT TERM

runs() { kill -0 "$server" 2>/dev/null || { echo "the server ended; is port 8501 in use?" >&2; exit 1; }; }
until "$millpond" models status mobilenet-v2 >/dev/null 2>&1; do
    runs
    sleep 0.2
done
# Another server at that port would answer too. This one exits at once if it cannot listen.
sleep 1
runs
"$millpond" images index "$dir/pictures" --collection pictures
for copy in "$dir"/changed/*; do
    printf '\n%s, cropped, rotated and recompressed:\n' "$(basename "$copy")"
    "$millpond" images search "$copy" --collection pictures -k 3
done
printf '\nTry it: http://127.0.0.1:8501/images?collection=pictures (drop %s/changed/* there; Ctrl-C ends it)\n' "$dir"
wait "$server"
