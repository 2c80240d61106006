-- wrk: sends the body of the file PEER_BODY and prints one line of JSON at the end.
local file = io.open(os.getenv("PEER_BODY"))
wrk.method = "POST"
wrk.body = file:read("*a")
wrk.headers["Content-Type"] = "application/json"
file:close()

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\nJSON {"requests":%d,"seconds":%f,"p50_ms":%f,"p99_ms":%f,"p999_ms":%f,"failed":%d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    latency:percentile(99.9) / 1e3, errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
