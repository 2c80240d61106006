{{/*
Spec of a pod that runs `millpond serve`. Takes a dictionary:
  root             the chart's scope
  arguments        text: list of arguments after `serve`, before those of `args`
  groupArgs        list: arguments after those of `args`
  environment      text: variables before those of `env`
  variablesSecret  Secret whose keys are variables, or ""
  etcdSecret       Secret with certificates for etcd, mounted at /etc/millpond-etcd, or ""
  pauses           true: waits `preStopSeconds` before SIGTERM, for clients of a Service; not if it is 0
  graceSeconds     time from the removal of the pod to SIGKILL
  resources        resources of the container
  models           true: the volume of models is mounted
  cacheClaim       claim of the cache, or ""
  data             text: source of the volume "data"; "" if a StatefulSet adds the volume
  placement        dictionary: nodeSelector, tolerations, affinity, topologySpreadConstraints, priorityClassName
*/}}
{{- define "millpond.podSpec" -}}
{{- $ := .root -}}
{{- include "millpond.checkRepeated" (dict "root" $ "own" .arguments "args" (concat $.Values.args .groupArgs)) }}
{{- if and .pauses $.Values.preStopSeconds (lt (int .graceSeconds) (int $.Values.preStopSeconds)) }}
{{- $name := ternary "cluster.terminationGracePeriodSeconds" "terminationGracePeriodSeconds" $.Values.cluster.enabled }}
{{- fail (printf "%s %d is shorter than preStopSeconds %d; set it above preStopSeconds and --shutdown-grace (30 s) together" $name (int .graceSeconds) (int $.Values.preStopSeconds)) }}
{{- end }}
{{- include "millpond.checkVolumes" $ }}
{{- include "millpond.checkGrace" (dict "root" $ "args" (concat $.Values.args .groupArgs) "pause" (ternary (int $.Values.preStopSeconds) 0 .pauses) "graceSeconds" .graceSeconds) }}
{{/* All ports answer the health endpoints, also if there is an admin port. */}}
{{- $health := ternary "port: http, scheme: HTTPS" "port: http" (not (empty $.Values.tls.secret)) -}}
serviceAccountName: {{ include "millpond.serviceAccount" $ | quote }}
automountServiceAccountToken: false
{{- with $.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- include "millpond.podSecurity" $ | nindent 2 }}
terminationGracePeriodSeconds: {{ .graceSeconds }}
{{- with .placement.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with include "millpond.initContainers" . | fromJsonArray }}
initContainers: {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: millpond
    image: {{ include "millpond.image" $ }}
    imagePullPolicy: {{ $.Values.image.pullPolicy }}
    args:
      - serve
      {{- .arguments | nindent 6 }}
      {{- if $.Values.tls.secret }}
      - --tls-cert=/etc/millpond-tls/tls.crt
      - --tls-key=/etc/millpond-tls/tls.key
      {{- end }}
      {{- if $.Values.adminPort }}
      - --admin-port={{ $.Values.adminPort }}
      {{- end }}
      {{- range concat $.Values.args .groupArgs }}
      - {{ . | quote }}
      {{- end }}
    env:
      {{- with .environment }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- if $.Values.settings }}
      - {name: MILLPOND_CONFIG, value: /etc/millpond/millpond.toml}
      {{- end }}
      {{- if $.Values.keysSecret }}
      # The pod waits for the Secret and for this name in it. With empty keys, the server does not start.
      - {name: MILLPOND_REQUIRE_KEY, value: "1"}
      - name: MILLPOND_API_KEY
        valueFrom: {secretKeyRef: {name: {{ $.Values.keysSecret | quote }}, key: api-key}}
      - name: MILLPOND_ADMIN_KEY
        valueFrom: {secretKeyRef: {name: {{ $.Values.keysSecret | quote }}, key: admin-key, optional: true}}
      {{- end }}
      {{- with $.Values.env }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- if or .variablesSecret $.Values.envFrom }}
    envFrom:
      {{- with .variablesSecret }}
      - secretRef: {name: {{ . | quote }}}
      {{- end }}
      {{- with $.Values.envFrom }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- end }}
    ports:
      - {name: http, containerPort: 8501}
      - {name: grpc, containerPort: 8500}
      {{- if $.Values.adminPort }}
      - {name: admin, containerPort: {{ $.Values.adminPort }}}
      {{- end }}
    # Not the readiness: a broken model, or a load that takes long, would end the server again and again.
    startupProbe:
      httpGet: {path: /livez, {{ $health }}}
      periodSeconds: 2
      failureThreshold: {{ div $.Values.probes.startupSeconds 2 }}
    readinessProbe:
      httpGet: {path: {{ $.Values.probes.readinessPath }}, {{ $health }}}
      periodSeconds: 5
      timeoutSeconds: 3
    livenessProbe:
      httpGet: {path: /livez, {{ $health }}}
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: 6
    {{- if and .pauses $.Values.preStopSeconds }}
    lifecycle:
      preStop:
        sleep: {seconds: {{ $.Values.preStopSeconds }}}
    {{- end }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    resources: {{- toYaml .resources | nindent 6 }}
    volumeMounts:
      {{- if .models }}
      - name: models
        mountPath: /models
        readOnly: true
        {{- with $.Values.models.subPath }}
        subPath: {{ . | quote }}
        {{- end }}
      {{- end }}
      - {name: cache, mountPath: /var/cache/millpond}
      - {name: data, mountPath: /var/lib/millpond}
      - {name: scratch, mountPath: /tmp}
      {{- if $.Values.settings }}
      # A directory: a single file would not change with the ConfigMap.
      - {name: settings, mountPath: /etc/millpond, readOnly: true}
      {{- end }}
      {{- if $.Values.tls.secret }}
      # A directory, so that the server reads a renewed certificate.
      - {name: tls, mountPath: /etc/millpond-tls, readOnly: true}
      {{- end }}
      {{- if .etcdSecret }}
      - {name: etcd, mountPath: /etc/millpond-etcd, readOnly: true}
      {{- end }}
      {{- with $.Values.extraVolumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
volumes:
  {{- if .models }}
  - name: models
    {{- if include "millpond.modelsClaim" $ }}
    persistentVolumeClaim: {claimName: {{ include "millpond.modelsClaim" $ | quote }}}
    {{- else }}
    emptyDir: {}
    {{- end }}
  {{- end }}
  - name: cache
    {{- if .cacheClaim }}
    persistentVolumeClaim: {claimName: {{ .cacheClaim | quote }}}
    {{- else }}
    emptyDir: {sizeLimit: {{ $.Values.cache.sizeLimit }}}
    {{- end }}
  {{- with .data }}
  - name: data
    {{- . | nindent 4 }}
  {{- end }}
  - name: scratch
    emptyDir: {}
  {{- if $.Values.settings }}
  - name: settings
    configMap: {name: {{ include "millpond.name" $ }}}
  {{- end }}
  {{- with $.Values.tls.secret }}
  - name: tls
    secret: {secretName: {{ . | quote }}}
  {{- end }}
  {{- with .etcdSecret }}
  - name: etcd
    secret: {secretName: {{ . | quote }}}
  {{- end }}
  {{- with $.Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $placement := .placement }}
{{- range $field := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
{{- with index $placement $field }}
{{ $field }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
Returns `initContainers`, as JSON. Kubernetes refuses mounts of a volume that the pod does not have, so containers that mount
"models" are left out of pods without it. Takes a dictionary: root, models.
*/}}
{{- define "millpond.initContainers" -}}
{{- $models := .models }}
{{- $containers := list }}
{{- range $container := .root.Values.initContainers }}
{{- $volumes := list }}
{{- range $container.volumeMounts }}
{{- $volumes = append $volumes .name }}
{{- end }}
{{- if or $models (not (has "models" $volumes)) }}
{{- $containers = append $containers $container }}
{{- end }}
{{- end }}
{{- toJson $containers }}
{{- end -}}

{{/*
Fails if `extraVolumes` or `extraVolumeMounts` repeat a name or a path of the chart: an upgrade would merge both entries.
*/}}
{{- define "millpond.checkVolumes" -}}
{{- range .Values.extraVolumes }}
{{- if has .name (list "models" "cache" "data" "scratch" "settings" "tls" "etcd") }}
{{- fail (printf "extraVolumes: %s: the chart has a volume of this name; choose another" .name) }}
{{- end }}
{{- end }}
{{- range .Values.extraVolumeMounts }}
{{- if has (trimSuffix "/" .mountPath) (list "/models" "/var/cache/millpond" "/var/lib/millpond" "/tmp" "/etc/millpond" "/etc/millpond-tls" "/etc/millpond-etcd") }}
{{- fail (printf "extraVolumeMounts: %s: the chart mounts a volume there; choose another path" .mountPath) }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
Security context of a pod. OpenShift refuses users and groups outside the range of the namespace, and chooses them if a pod
names none. So the chart's own number is left out there; other numbers stay.
*/}}
{{- define "millpond.podSecurity" -}}
{{- $context := .Values.podSecurityContext | default dict }}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" }}
{{- range $field := list "runAsUser" "runAsGroup" "fsGroup" }}
{{- if eq (get $context $field | default 0 | int) 65532 }}
{{- $context = omit $context $field }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $context }}
{{- end -}}

{{/*
Fails if `args` repeat a flag that the chart sets: the server takes each flag once, so its pods would never start. Only
--cluster-etcd may be repeated, and adds addresses. Fails also if `settings` have such a flag or are not read: flags take
precedence over the file. The key `host` is not looked for, because labels of models may have that name. Groups of a
cluster share the file, and some of them use its collections-dir. Takes a dictionary: root, own (text: list of the chart's
arguments), args.
*/}}
{{- define "millpond.checkRepeated" -}}
{{- $remedies := dict
  "--host" "the pods listen on all addresses, where probes and Services find them"
  "--collections-dir" (ternary "groups with the role search have collections" "set search.enabled to serve collections" .root.Values.cluster.enabled) }}
{{- $args := .args }}
{{- $settings := .root.Values.settings }}
{{- $permitted := ternary (list "--host" "--collections-dir") (list "--host") .root.Values.cluster.enabled }}
{{- range $args }}
{{- if and $settings (regexMatch "^--config(=|$)" .) }}
{{- fail "args: --config: leave it out: the pods read the file of `settings`" }}
{{- end }}
{{- end }}
{{- range splitList "\n" .own }}
{{- $flag := regexFind "--[a-z][a-z-]*" . }}
{{- $key := trimPrefix "--" $flag }}
{{- if and $flag (not (has $flag $permitted)) (regexMatch (printf "(?m)^[ \\t]*([a-z]+[ \\t]*\\.[ \\t]*)?\"?%s\"?[ \\t]*=" $key) $settings) }}
{{- fail (printf "settings: %s: leave it out: %s" $key (get $remedies $flag | default "the chart sets it")) }}
{{- end }}
{{- range $args }}
{{- if and $flag (ne $flag "--cluster-etcd") (eq $flag (splitList "=" . | first)) }}
{{- fail (printf "args: %s: leave it out: %s" $flag (get $remedies $flag | default "the chart sets it")) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
Fails if Kubernetes would kill a pod before --shutdown-grace of `args` or `settings` has passed. Reads whole numbers with or
without one of the units s, m, min and h; other times are not checked. Takes a dictionary: root, args, pause (seconds before
SIGTERM), graceSeconds (time from the removal of the pod to SIGKILL).
*/}}
{{- define "millpond.checkGrace" -}}
{{- $stated := regexFind "(?m)^[ \\t]*(server[ \\t]*\\.[ \\t]*)?\"?shutdown-grace\"?[ \\t]*=.*$" .root.Values.settings }}
{{- $args := .args }}
{{- range $index, $argument := $args }}
{{- $next := add1 $index | int }}
{{- if hasPrefix "--shutdown-grace=" $argument }}
{{- $stated = $argument }}
{{- else if and (eq $argument "--shutdown-grace") (lt $next (len $args)) }}
{{- $stated = printf "=%s" (index $args $next) }}
{{- end }}
{{- end }}
{{- $time := regexFind "=[ \\t]*[\"']?[0-9]+[a-z]*" $stated }}
{{- $units := dict "none" 1 "s" 1 "m" 60 "min" 60 "h" 3600 }}
{{- $unit := regexFind "[a-z]+$" $time | default "none" }}
{{- $seconds := mul (regexFind "[0-9]+" $time | int) (get $units $unit | int) }}
{{- $needed := add .pause $seconds | int }}
{{- if lt (int .graceSeconds) $needed }}
{{- $name := ternary "cluster.terminationGracePeriodSeconds" "terminationGracePeriodSeconds" .root.Values.cluster.enabled }}
{{- fail (printf "%s %d is shorter than preStopSeconds and shutdown-grace together, which are %d" $name (int .graceSeconds) $needed) }}
{{- end }}
{{- end -}}

{{/* Metrics of a HorizontalPodAutoscaler. Takes values such as those of `autoscaling`. */}}
{{- define "millpond.scalingMetrics" -}}
{{- if gt (int .minReplicas) (int .maxReplicas) }}
{{- fail (printf "autoscaling: minReplicas %d is above maxReplicas %d" (int .minReplicas) (int .maxReplicas)) }}
{{- end }}
{{- if .cpuUtilization -}}
- type: Resource
  resource: {name: cpu, target: {type: Utilization, averageUtilization: {{ .cpuUtilization }}}}
{{- end }}
{{- if .requestsPerSecond }}
- type: Pods
  pods:
    metric: {name: millpond_window_requests_per_second}
    target: {type: AverageValue, averageValue: {{ .requestsPerSecond | quote }}}
{{- end }}
{{- if .queuedRequests }}
- type: Pods
  pods:
    metric: {name: millpond_queued_requests}
    target: {type: AverageValue, averageValue: {{ .queuedRequests | quote }}}
{{- end }}
{{- end -}}
