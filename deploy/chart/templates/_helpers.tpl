{{- define "onlyonce.labels" -}}
app.kubernetes.io/name: onlyonce
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- /* What all pods have in common: no rights, no writable files. */}}
{{- define "onlyonce.pod" -}}
automountServiceAccountToken: false
securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
{{- end }}

{{- define "onlyonce.container" -}}
name: {{ .part }}
image: "{{ .root.Values.image.repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}"
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
env:
  - name: ONLYONCE_POSTGRES_URL
    valueFrom: {secretKeyRef: {name: {{ .values.secret | default .root.Values.postgres.secret }}, key: url}}
{{- with .values.envSecret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- with .values.resources }}
resources: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
