{{/* The pod that Spark makes for each of its executors: the sidecar alone has what opens etcd. */}}
{{- define "distop.worker" -}}
apiVersion: v1
kind: Pod
metadata:
  labels: {{- include "distop.labels" (dict "root" . "component" "worker") | nindent 4 }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  securityContext: {{- include "distop.podSecurity" . | nindent 4 }}
  {{- include "distop.placement" .Values.executor.workers | nindent 2 }}
  initContainers:
    - name: sidecar
      restartPolicy: Always
      image: {{ .Values.image.service | quote }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      {{- if .Values.monitoring.podMonitor }}
      args: [sidecar, --log-format=json, --metrics=0.0.0.0:7073, --insecure]
      ports:
        - { name: metrics, containerPort: 7073 }
      {{- else }}
      args: [sidecar, --log-format=json]
      {{- end }}
      env:
        {{- include "distop.etcdEnv" . | nindent 8 }}
      # Tasks begin once it has its lease.
      startupProbe:
        exec: { command: [distop, cluster, probe, sidecar] }
        periodSeconds: 2
        timeoutSeconds: 10
        failureThreshold: 60
      resources: {{- toYaml .Values.sidecar.resources | nindent 8 }}
      securityContext: {{- include "distop.security" . | nindent 8 }}
      volumeMounts:
        - { name: tmp, mountPath: /tmp }
        - { name: run, mountPath: /run/distop }
        {{- include "distop.etcdMounts" . | nindent 8 }}
  containers:
    - name: worker
      image: {{ .Values.image.spark | quote }}
      command: [spark-executor]
      {{- include "distop.envFrom" . | nindent 6 }}
      securityContext: {{- include "distop.security" . | nindent 8 }}
      volumeMounts:
        # By a name that begins like this Spark knows that it has a local folder, and mounts none of its own over it.
        - { name: spark-local-dir-1, mountPath: /tmp }
        - { name: run, mountPath: /run/distop }
  volumes:
    - name: tmp
      emptyDir: {}
    - name: spark-local-dir-1
      emptyDir: {}
    - name: run
      emptyDir: {}
    {{- include "distop.etcdVolumes" . | nindent 4 }}
{{- end -}}
