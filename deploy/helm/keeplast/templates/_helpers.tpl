{{- define "keeplast.fullname" -}}
{{ .Values.fullnameOverride | default .Release.Name | trunc 31 | trimSuffix "-" }}
{{- end }}

{{- define "keeplast.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "keeplast.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "keeplast.selector" . }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "keeplast.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default (include "keeplast.fullname" .) }}
{{- else }}
{{- .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{- /* A value of TOML. Numbers of YAML arrive as floats, and a large one would be written as 6e+08. */ -}}
{{- define "keeplast.tomlValue" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else if kindIs "float64" . }}{{ . }}{{ else }}{{ toJson . }}{{ end }}
{{- end }}

{{- define "keeplast.tomlTable" }}
[{{ .header }}]
{{- range $key, $value := .table }}
{{- if not (kindIs "map" $value) }}
{{ toJson $key }} = {{ include "keeplast.tomlValue" $value }}
{{- end }}
{{- end }}
{{ range $key, $value := .table }}
{{- if kindIs "map" $value }}
{{- include "keeplast.tomlTable" (dict "header" (printf "%s.%s" $.header (toJson $key)) "table" $value) }}
{{- end }}
{{- end }}
{{- end }}

{{- /*
The place's tables of keeplast.toml, of a dict with root and place. A store's owner has a name that stays:
the name of a host is another one in every pod, and the next pod would find the partitions taken.
*/ -}}
{{- define "keeplast.toml" -}}
{{- $place := .place }}
{{- $own := dict "at" $place.at }}
{{- $isCluster := hasPrefix "kafka://" $place.at }}
{{- $isStore := or (hasPrefix "postgresql" $place.at) (hasPrefix "sqlite" $place.at) }}
{{- if $isStore }}{{ $_ := set $own "owner" (printf "%s-%s" (include "keeplast.fullname" .root) $place.name) }}{{ end }}
{{- if or $isStore $isCluster }}{{ $_ := set $own "receipt" (printf "/var/lib/keeplast/%s.receipts" $place.name) }}{{ end }}
{{- if $place.strimziLogin }}{{ $_ := set $own "command-config" "/etc/keeplast/login/client.properties" }}{{ end }}
{{- $table := mergeOverwrite $own (deepCopy $place.properties) }}
{{- if $place.cluster }}{{ $_ := set $table "cluster" $place.cluster }}{{ end }}
{{- if $place.topics }}{{ $_ := set $table "topic" $place.topics }}{{ end }}
{{- include "keeplast.tomlTable" (dict "header" (printf "place.%s" (toJson $place.name)) "table" $table) }}
{{- end }}

{{- define "keeplast.placeLabels" -}}
app.kubernetes.io/component: {{ ternary "clean" "run" (ne .place.schedule "") }}
keeplast/place: {{ .place.name }}
{{- end }}

{{- define "keeplast.pod" -}}
{{- $root := .root }}
{{- $place := .place }}
{{- $name := .name }}
{{- $image := printf "%s:%s" $root.Values.image.repository ($root.Values.image.tag | default $root.Chart.AppVersion) }}
metadata:
  labels:
    {{- include "keeplast.labels" $root | nindent 4 }}
    {{- include "keeplast.placeLabels" . | nindent 4 }}
    {{- with $place.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/keeplast.toml: {{ include "keeplast.toml" . | sha256sum }}
    {{- with $place.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "keeplast.serviceAccount" $root }}
  automountServiceAccountToken: {{ $root.Values.serviceAccount.automountToken }}
  {{- if $place.schedule }}
  restartPolicy: Never
  {{- end }}
  terminationGracePeriodSeconds: {{ int64 $place.terminationGracePeriodSeconds }}
  {{- with $root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $place.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $place.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $place.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $place.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: {{ int64 $place.runAsUser }}
    runAsGroup: {{ int64 $place.runAsGroup }}
    fsGroup: {{ int64 $place.fsGroup }}
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  {{- if $place.strimziLogin }}
  initContainers:
    - name: login
      image: {{ $image }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      command: [sh, -ec]
      args:
        - |
          umask 077
          {
            echo security.protocol=SASL_SSL
            echo sasl.mechanism=SCRAM-SHA-512
            echo ssl.truststore.type=PEM
            echo ssl.truststore.location=/etc/keeplast/ca/ca.crt
            printf 'sasl.jaas.config=%s\n' "$(cat /etc/keeplast/user/sasl.jaas.config)"
          } > /etc/keeplast/login/client.properties
      securityContext:
        {{- include "keeplast.containerSecurity" . | nindent 8 }}
      resources:
        requests: {cpu: 10m, memory: 32Mi}
        limits: {memory: 32Mi}
      volumeMounts:
        - {name: login, mountPath: /etc/keeplast/login}
        - {name: user, mountPath: /etc/keeplast/user, readOnly: true}
  {{- end }}
  containers:
    - name: keeplast
      image: {{ $image }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      command: [keeplast]
      args:
        - {{ ternary "clean" "run" (ne $place.schedule "") }}
        - {{ $place.name }}
        {{- if $place.takeOver }}
        - --take-over
        {{- end }}
        {{- if not $place.schedule }}
        - --metrics-host=0.0.0.0
        - --metrics-port={{ int64 $place.metricsPort }}
        - --console=127.0.0.1:{{ int64 $place.consolePort }}
        {{- end }}
        {{- range $place.args }}
        - {{ . | quote }}
        {{- end }}
      env:
        - {name: KEEPLAST_CONFIG, value: /etc/keeplast/config/keeplast.toml}
        {{- range $variable, $from := $place.secretEnv }}
        - name: {{ $variable }}
          valueFrom:
            secretKeyRef: {name: {{ $from.secret | quote }}, key: {{ $from.key | quote }}}
        {{- end }}
      {{- if not $place.schedule }}
      ports:
        - {name: metrics, containerPort: {{ int64 $place.metricsPort }}}
      # Opening the place may wait for a database or for brokers.
      startupProbe:
        httpGet: {path: /metrics, port: metrics}
        periodSeconds: 10
        failureThreshold: 30
      # Of the process alone: a restart mends no store that does not answer.
      livenessProbe:
        httpGet: {path: /metrics, port: metrics}
        periodSeconds: 30
        timeoutSeconds: 10
        failureThreshold: 10
      # Of the work: 503 while nothing can be worked on, or the loop shows no life.
      readinessProbe:
        exec:
          command: [keeplast-healthy, "http://127.0.0.1:{{ int64 $place.consolePort }}/healthz"]
        periodSeconds: 30
        timeoutSeconds: 10
      {{- end }}
      securityContext:
        {{- include "keeplast.containerSecurity" . | nindent 8 }}
      resources:
        {{- toYaml $place.resources | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/keeplast/config, readOnly: true}
        - {name: state, mountPath: /var/lib/keeplast}
        - {name: tmp, mountPath: /tmp}
        {{- if $place.strimziLogin }}
        - {name: login, mountPath: /etc/keeplast/login, readOnly: true}
        - {name: ca, mountPath: /etc/keeplast/ca, readOnly: true}
        {{- end }}
        {{- range $directory, $_ := $place.secretFiles }}
        - {name: secret-{{ $directory }}, mountPath: /etc/keeplast/secrets/{{ $directory }}, readOnly: true}
        {{- end }}
        {{- with $place.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ $name }}}
    - name: state
      {{- if $place.state.existingClaim }}
      persistentVolumeClaim: {claimName: {{ $place.state.existingClaim }}}
      {{- else if $place.state.size }}
      persistentVolumeClaim: {claimName: {{ $name }}}
      {{- else }}
      emptyDir: {}
      {{- end }}
    - name: tmp
      emptyDir: {sizeLimit: {{ $place.tmpSize }}}
    {{- if $place.strimziLogin }}
    - name: login
      emptyDir: {medium: Memory, sizeLimit: 1Mi}
    - name: user
      secret: {secretName: {{ $root.Values.strimzi.user }}}
    - name: ca
      secret: {secretName: {{ required "strimziLogin needs strimzi.cluster" $root.Values.strimzi.cluster }}-cluster-ca-cert}
    {{- end }}
    {{- range $directory, $secret := $place.secretFiles }}
    - name: secret-{{ $directory }}
      secret: {secretName: {{ $secret }}}
    {{- end }}
    {{- with $place.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "keeplast.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
