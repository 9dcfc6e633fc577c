{{- define "berth.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "berth.fullname" -}}
{{- $name := include "berth.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "berth.selectorLabels" -}}
app.kubernetes.io/name: {{ include "berth.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "berth.labels" -}}
{{ include "berth.selectorLabels" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "berth.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "berth.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "berth.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- /* The models of the configuration, as a YAML list: llm_configs at the top, or those of Ray's applications. */}}
{{- define "berth.models" -}}
{{- $models := .Values.config.llm_configs | default list }}
{{- range .Values.config.applications }}
{{- $models = concat $models ((.args | default dict).llm_configs | default list) }}
{{- end }}
{{- toYaml $models }}
{{- end }}

{{- /* The namespaces that berth watches, as a YAML list without duplicates. */}}
{{- define "berth.watchedNamespaces" -}}
{{- $namespaces := .Values.rbac.namespaces }}
{{- range include "berth.models" . | fromYamlArray }}
{{- if and (kindIs "map" .) (hasKey . "kubernetes") }}
{{- $namespaces = append $namespaces ((.kubernetes | default dict).namespace | default $.Release.Namespace) }}
{{- end }}
{{- end }}
{{- toYaml ($namespaces | uniq | sortAlpha) }}
{{- end }}

{{- /* Seconds from SIGTERM to SIGKILL: the drain, and time to write the last bytes and logs. */}}
{{- define "berth.gracePeriod" -}}
{{- $http := .Values.config.http | default dict }}
{{- $delay := ternary $http.drain_delay_s 0 (hasKey $http "drain_delay_s") }}
{{- $timeout := ternary $http.drain_timeout_s 600 (hasKey $http "drain_timeout_s") }}
{{- addf $delay $timeout 15 | ceil | int }}
{{- end }}

{{- define "berth.scheme" -}}
{{- if (.Values.config.http | default dict).tls }}HTTPS{{ else }}HTTP{{ end }}
{{- end }}
