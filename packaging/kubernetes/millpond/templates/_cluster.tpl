{{/*
Returns the enabled groups of a cluster by name, as JSON: those of `cluster.groups` with the defaults of a group. Adds
`name`, the name of the group's objects, and `stateful`, true if its nodes keep their names.
*/}}
{{- define "millpond.groups" -}}
{{- $groups := dict }}
{{- range $name, $given := .Values.cluster.groups }}
{{- $group := dict "enabled" true "replicas" 1 "args" list "minReadySeconds" 0 "antiAffinity" "preferred" }}
{{- range $field := list "resources" "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" }}
{{- $_ := set $group $field (index $given $field | default (index $.Values $field)) }}
{{- end }}
{{- range $field := list "enabled" "roles" "replicas" "args" "minReadySeconds" "antiAffinity" }}
{{- if hasKey $given $field }}
{{- $_ := set $group $field (index $given $field) }}
{{- end }}
{{- end }}
{{- $scaling := dict "enabled" false "minReplicas" 2 "maxReplicas" 10 "cpuUtilization" 70 "requestsPerSecond" 0 "queuedRequests" 0 }}
{{- range $field, $value := $given.autoscaling | default dict }}
{{- $_ := set $scaling $field $value }}
{{- end }}
{{- $volume := dict "size" "100Gi" "storageClass" "" "whenDeleted" "Retain" "whenScaled" "Retain" }}
{{- range $field, $value := $given.volume | default dict }}
{{- $_ := set $volume $field $value }}
{{- end }}
{{- $holds := has "search" $group.roles }}
{{/* 52 characters at most: the pods of a StatefulSet have a label with this name and a hash. */}}
{{- $base := include "millpond.name" $ | trunc (int (sub 51 (len $name))) | trimSuffix "-" }}
{{- $_ := set $group "autoscaling" $scaling }}
{{- $_ := set $group "volume" (ternary $volume nil $holds) }}
{{- $_ := set $group "stateful" (or $holds (has "ingest" $group.roles)) }}
{{- $_ := set $group "name" (printf "%s-%s" $base $name) }}
{{- if $group.enabled }}
{{- $_ := set $groups $name $group }}
{{- end }}
{{- end }}
{{- toJson $groups }}
{{- end -}}

{{/* Fails if values have no effect in a cluster, or contradict each other. */}}
{{- define "millpond.checkCluster" -}}
{{- if ne (int .Values.replicas) 1 }}
{{- fail "replicas has no effect with cluster.enabled; set cluster.groups.NAME.replicas" }}
{{- end }}
{{- if .Values.autoscaling.enabled }}
{{- fail "autoscaling.enabled has no effect with cluster.enabled; set cluster.groups.NAME.autoscaling" }}
{{- end }}
{{- if .Values.search.enabled }}
{{- fail "search.enabled has no effect with cluster.enabled; set the volume of a group with the role search" }}
{{- end }}
{{- if .Values.tls.secret }}
{{- fail "tls.secret has no effect with cluster.enabled: the chart sets up no TLS between the nodes" }}
{{- end }}
{{- if .Values.cache.existingClaim }}
{{- fail "cache.existingClaim has no effect with cluster.enabled: each node has a cache of its own" }}
{{- end }}
{{- with .Values.cluster }}
{{- $secure := list }}
{{- range .etcd }}
{{- $secure = append $secure (hasPrefix "https://" .) }}
{{- end }}
{{- if and (has true $secure) (has false $secure) }}
{{- fail "cluster.etcd has addresses with http:// and with https://; write all with https://" }}
{{- end }}
{{- if and (has true $secure) (not .etcdTls.secret) }}
{{- fail "cluster.etcd has https://, which needs cluster.etcdTls.secret" }}
{{- end }}
{{- if and (has false $secure) (or .etcdTls.secret .etcdTls.clientCertificate) }}
{{- fail "cluster.etcdTls has no effect without cluster.etcd with https://" }}
{{- end }}
{{- end }}
{{- $groups := include "millpond.groups" . | fromJson }}
{{- $all := list }}
{{- range $name, $group := $groups }}
{{- $all = concat $all $group.roles }}
{{- include "millpond.checkListeners" (dict "root" $ "args" (concat $.Values.args $group.args)) }}
{{- $given := index $.Values.cluster.groups $name }}
{{- if and $given.volume (not $group.volume) }}
{{- fail (printf "cluster.groups.%s.volume has no effect without the role search; set it to null" $name) }}
{{- end }}
{{- with $group.autoscaling }}
{{- if and .enabled $group.stateful }}
{{- fail (printf "cluster.groups.%s.autoscaling: groups with the role search or ingest are not scaled by load, because shards move; set replicas" $name) }}
{{- end }}
{{- if and .enabled (not (or .cpuUtilization .requestsPerSecond .queuedRequests)) }}
{{- fail (printf "cluster.groups.%s.autoscaling.enabled needs cpuUtilization, requestsPerSecond or queuedRequests above 0" $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $role := list "root" "search" "ingest" }}
{{- if not (has $role $all) }}
{{- fail (printf "no enabled group of cluster.groups has the role %s" $role) }}
{{- end }}
{{- end }}
{{- if and (include "millpond.modelsClaim" .) (not (has "extract" $all)) }}
{{- fail "models has no effect in a cluster without the role extract; set cluster.groups.extract.enabled" }}
{{- end }}
{{- end -}}

{{/* Labels that select the pods of a group. Takes a dictionary: root, component. */}}
{{- define "millpond.groupSelector" -}}
{{ include "millpond.selector" .root }}
app.kubernetes.io/component: {{ .component | quote }}
{{- end -}}

{{/* Labels of the objects of a group. Takes a dictionary: root, component. */}}
{{- define "millpond.groupLabels" -}}
{{ include "millpond.labels" .root }}
app.kubernetes.io/component: {{ .component | quote }}
{{- end -}}

{{/* Arguments of a node. Takes a dictionary: root, group. */}}
{{- define "millpond.nodeArguments" -}}
{{- $cluster := .root.Values.cluster -}}
{{- if has "extract" .group.roles -}}
- /models
{{ end -}}
- "--host=::"
{{- if not (has "search" .group.roles) }}
- --collections-dir=none
{{- end }}
- --cluster-store={{ $cluster.store }}
- --cluster-etcd={{ join "," $cluster.etcd }}
{{- if $cluster.etcdTls.secret }}
- --cluster-etcd-ca=/etc/millpond-etcd/ca.crt
{{- if $cluster.etcdTls.clientCertificate }}
- --cluster-etcd-cert=/etc/millpond-etcd/tls.crt
- --cluster-etcd-key=/etc/millpond-etcd/tls.key
{{- end }}
{{- end }}
- --cluster-name={{ $cluster.name | default (printf "%s.%s" .root.Release.Namespace (include "millpond.name" .root)) }}
- --cluster-roles={{ join "," .group.roles }}
- --cluster-node=$(POD_NAME)
- --cluster-address=$(POD_IP):8501
{{- end -}}

{{/* Variables of a node: those of its arguments, and the user of etcd. */}}
{{- define "millpond.nodeEnvironment" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- with .Values.cluster.etcdUserSecret }}
- name: MILLPOND_ETCD_USER
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: username}}
- name: MILLPOND_ETCD_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: password}}
{{- end }}
{{- end -}}

{{/*
Placement of the pods of a group, as JSON: that of the group, else that of all pods. Without a choice, pods are spread
over zones if possible, and kept on different machines as `antiAffinity` says. Takes a dictionary: root, group,
component.
*/}}
{{- define "millpond.groupPlacement" -}}
{{- $labels := include "millpond.groupSelector" . | fromYaml }}
{{- $selector := dict "matchLabels" $labels }}
{{- $constraints := .group.topologySpreadConstraints }}
{{- if not $constraints }}
{{- $constraints = list (dict "maxSkew" 1 "topologyKey" "topology.kubernetes.io/zone" "whenUnsatisfiable" "ScheduleAnyway" "labelSelector" $selector) }}
{{- end }}
{{- $affinity := .group.affinity }}
{{- if and (not $affinity) (ne .group.antiAffinity "none") }}
{{/* All groups with the role search hold copies of the same shards. */}}
{{- if has "search" .group.roles }}
{{- $labels = merge (dict "role.millpond/search" "true") (include "millpond.selector" .root | fromYaml) }}
{{- end }}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $labels) }}
{{- $preferred := dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $term)) }}
{{- $required := dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term) }}
{{- $affinity = dict "podAntiAffinity" (ternary $required $preferred (eq .group.antiAffinity "required")) }}
{{- end }}
{{- dict "nodeSelector" .group.nodeSelector "tolerations" .group.tolerations "affinity" $affinity
  "topologySpreadConstraints" $constraints "priorityClassName" .group.priorityClassName | toJson }}
{{- end -}}
