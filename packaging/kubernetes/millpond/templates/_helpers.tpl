{{- define "millpond.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/*
Regular expression of the jobs of Prometheus, which are the names of the Services that the ServiceMonitor selects. A long
name of a release leaves no room for the name of the chart in them.
*/}}
{{- define "millpond.jobs" -}}
{{- $names := list (include "millpond.name" .) (printf "%s-admin" (include "millpond.name" .)) }}
{{- if .Values.cluster.enabled }}
{{- $names = list }}
{{- range include "millpond.groups" . | fromJson }}
{{- $names = append $names .name }}
{{- end }}
{{- end }}
{{- $jobs := list ".*millpond.*" }}
{{- range $names }}
{{- if not (contains "millpond" .) }}
{{- $jobs = append $jobs . }}
{{- end }}
{{- end }}
{{- join "|" $jobs }}
{{- end -}}

{{- define "millpond.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "millpond.labels" -}}
{{ include "millpond.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "millpond.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "millpond.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "millpond.name" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* Families of the addresses of a Service: fields of its spec, or nothing. */}}
{{- define "millpond.ipFamilies" -}}
{{- with .Values.service.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.service.ipFamilies }}
ipFamilies: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Not empty if pods on two machines cannot mount the claim of models that the chart creates. */}}
{{- define "millpond.modelsOnOneMachine" -}}
{{- with .Values.models -}}
{{- if and .create (not .existingClaim) (not (has "ReadWriteMany" .accessModes)) (not (has "ReadOnlyMany" .accessModes)) -}}
true
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "millpond.modelsClaim" -}}
{{- .Values.models.existingClaim | default (ternary (printf "%s-models" (include "millpond.name" .)) "" .Values.models.create) -}}
{{- end -}}
