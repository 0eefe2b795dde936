{{- define "onlyonce.labels" -}}
app.kubernetes.io/name: onlyonce
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- /* What all pods have in common: no rights, no writable files, and the values of "pod" or of the part. */}}
{{- define "onlyonce.pod" -}}
{{- $pod := .root.Values.pod -}}
automountServiceAccountToken: false
securityContext: {runAsNonRoot: true, runAsUser: 65532, fsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .values.affinity | default $pod.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.nodeSelector | default $pod.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations | default $pod.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with concat (.own | default list) $pod.volumes (.values.volumes | default list) }}
volumes: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "onlyonce.container" -}}
{{- $pod := .root.Values.pod -}}
name: {{ .part }}
image: "{{ .root.Values.image.repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}"
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
env:
  - name: ONLYONCE_POSTGRES_URL
    valueFrom: {secretKeyRef: {name: {{ .values.secret | default .root.Values.postgres.secret }}, key: url}}
{{- with concat $pod.env (.values.env | default list) }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.envSecret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- with concat (.mounts | default list) $pod.volumeMounts (.values.volumeMounts | default list) }}
volumeMounts: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.resources }}
resources: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
