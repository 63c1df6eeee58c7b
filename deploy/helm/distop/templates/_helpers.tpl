{{- define "distop.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "distop.selector" -}}
app.kubernetes.io/name: distop
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "distop.labels" -}}
{{ include "distop.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{/* What values.schema.json cannot say well. */}}
{{- define "distop.check" -}}
{{- if not (regexMatch "^[a-z][-a-z0-9]*$" .Release.Name) -}}
{{- fail (printf "a release is called by letters, digits and dashes, a letter first, as its services are: not %s" .Release.Name) -}}
{{- end -}}
{{- with .Values -}}
{{- if not (or .coordinator.tlsSecret .coordinator.insecure) -}}
{{- fail "coordinator.tlsSecret must name a secret with tls.crt and tls.key; or allow plain text: coordinator.insecure=true" -}}
{{- end -}}
{{- if and .coordinator.tlsSecret .coordinator.insecure -}}
{{- fail "coordinator.tlsSecret and coordinator.insecure contradict each other: leave one of them out" -}}
{{- end -}}
{{- if ne (empty .etcd.user) (empty .etcd.passwordSecret) -}}
{{- fail "etcd.user and etcd.passwordSecret go together: give both, or neither" -}}
{{- end -}}
{{- if and (or .coordinator.issuers .coordinator.serviceAccounts) (not .coordinator.audience) -}}
{{- fail "issuers sign tokens for many: coordinator.audience must say which are for this service" -}}
{{- end -}}
{{- if and .coordinator.catalog.warehouse (not .coordinator.catalog.enabled) -}}
{{- fail "coordinator.catalog.warehouse is of the catalog, which is not enabled: coordinator.catalog.enabled=true" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "distop.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "distop.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{- define "distop.etcdEnv" -}}
- name: DISTOP_ETCD
  value: {{ join "," .Values.etcd.endpoints | quote }}
- name: DISTOP_PREFIX
  value: {{ .Values.etcd.prefix | quote }}
{{- if .Values.etcd.user }}
- name: DISTOP_ETCD_USER
  value: {{ .Values.etcd.user | quote }}
- name: DISTOP_ETCD_PASSWORD_FILE
  value: /etc/distop/etcd/user/password
{{- end }}
{{- if .Values.etcd.tlsSecret }}
- name: DISTOP_ETCD_CACERT
  value: /etc/distop/etcd/tls/ca.crt
- name: DISTOP_ETCD_CERT
  value: /etc/distop/etcd/tls/tls.crt
- name: DISTOP_ETCD_KEY
  value: /etc/distop/etcd/tls/tls.key
{{- end }}
{{- end -}}

{{- define "distop.etcdMounts" -}}
{{- if .Values.etcd.user }}
- { name: etcd-user, mountPath: /etc/distop/etcd/user, readOnly: true }
{{- end }}
{{- if .Values.etcd.tlsSecret }}
- { name: etcd-tls, mountPath: /etc/distop/etcd/tls, readOnly: true }
{{- end }}
{{- end -}}

{{- define "distop.etcdVolumes" -}}
{{- if .Values.etcd.user }}
- name: etcd-user
  secret: { secretName: {{ .Values.etcd.passwordSecret | quote }}, defaultMode: 0440 }
{{- end }}
{{- if .Values.etcd.tlsSecret }}
- name: etcd-tls
  secret: { secretName: {{ .Values.etcd.tlsSecret | quote }}, defaultMode: 0440 }
{{- end }}
{{- end -}}

{{- define "distop.allowEnv" -}}
{{- with .Values.allow }}
- name: DISTOP_ALLOW_SOURCES
  value: {{ join "," .sources | quote }}
- name: DISTOP_ALLOW_LOCATIONS
  value: {{ join "," .locations | quote }}
- name: DISTOP_ALLOW_ENDPOINTS
  value: {{ join "," .endpoints | quote }}
{{- end }}
{{- end -}}

{{- define "distop.envFrom" -}}
{{- with .Values.credentialsSecret }}
envFrom:
  - secretRef: { name: {{ . | quote }} }
{{- end }}
{{- end -}}

{{- define "distop.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "distop.apart" -}}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "distop.selector" . | nindent 14 }}
{{- end -}}
