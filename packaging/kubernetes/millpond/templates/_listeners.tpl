{{/*
Fails if the values contradict each other about ports and TLS, or if flags and settings change what probes and Services
expect. Takes a dictionary: root, args (the flags of a pod).
*/}}
{{- define "millpond.checkListeners" -}}
{{- $ := .root }}
{{- if has (int $.Values.adminPort) (list 8500 8501) }}
{{- fail (printf "adminPort %d is the port of HTTP (8501) or gRPC (8500) in the pods; choose another, such as 8502" (int $.Values.adminPort)) }}
{{- end }}
{{- if eq (int $.Values.service.httpPort) (int $.Values.service.grpcPort) }}
{{- fail (printf "service.httpPort and service.grpcPort are both %d; choose two ports" (int $.Values.service.httpPort)) }}
{{- end }}
{{- $values := dict
  "tls-cert" "set tls.secret, so that the probes use HTTPS"
  "tls-key" "set tls.secret, so that the probes use HTTPS"
  "tls-client-ca" "the probes of Kubernetes show no client certificate, so no pod would be ready; set keysSecret in place of it"
  "admin-port" "set adminPort, so that a Service and Prometheus know the port"
  "admin-host" "leave it out: the admin port listens on all addresses of the pod, where the Service and Prometheus find it"
  "http-port" "the pods listen on 8501; set service.httpPort for the port of the Service"
  "grpc-port" "the pods listen on 8500; set service.grpcPort for the port of the Service" }}
{{- $args := .args }}
{{- range $flag, $remedy := $values }}
{{- range $args }}
{{- if regexMatch (printf "^--%s(=|$)" $flag) . }}
{{- fail (printf "args: --%s: %s" $flag $remedy) }}
{{- end }}
{{- end }}
{{- if regexMatch (printf "(?m)^[ \\t]*(server[ \\t]*\\.[ \\t]*)?\"?%s\"?[ \\t]*=" $flag) $.Values.settings }}
{{- fail (printf "settings: %s: %s" $flag $remedy) }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
Returns "true" if two routes of the Gateway API can get the same request. A parent without `sectionName` or `port` has all
listeners of its Gateway, and the host "" has all hosts. Takes a dictionary: parents (two), hosts (two).
*/}}
{{- define "millpond.routesMeet" -}}
{{- $meet := false }}
{{- range $hosts := list .hosts (reverse .hosts) }}
{{- $one := first $hosts }}
{{- $other := last $hosts }}
{{- if or (not $one) (eq $one $other) (and (hasPrefix "*." $one) (hasSuffix (trimPrefix "*" $one) $other)) }}
{{- $meet = true }}
{{- end }}
{{- end }}
{{- range $field := list "name" "namespace" "sectionName" "port" }}
{{- $one := index (first $.parents) $field }}
{{- $other := index (last $.parents) $field }}
{{- if and $one $other (ne (toString $one) (toString $other)) }}
{{- $meet = false }}
{{- end }}
{{- end }}
{{- if $meet }}true{{ end }}
{{- end -}}
