{{/* Before 1.4 the chart brings the namespace itself and has no hook. */}}
{{- define "installer.bringsNamespace" -}}
{{- if or .Values.bareNamespace (semverCompare "<1.4.0-0" .Chart.AppVersion) }}yes{{ end -}}
{{- end }}

{{- define "installer.hasLabeler" -}}
{{- if semverCompare ">=1.4.0-0" .Chart.AppVersion }}yes{{ end -}}
{{- end }}

{{/* How a pod reaches the API server before there is a pod network. */}}
{{- define "installer.apiServer" -}}
{{- $variant := .Values.cozystackOperator.variant }}
{{- if eq $variant "talos" }}
- {name: KUBERNETES_SERVICE_HOST, value: localhost}
- {name: KUBERNETES_SERVICE_PORT, value: "7445"}
{{- else if eq $variant "generic" }}
- {name: KUBERNETES_SERVICE_HOST, value: {{ required "cozystack.apiServerHost is required in generic mode" .Values.cozystack.apiServerHost | quote }}}
- {name: KUBERNETES_SERVICE_PORT, value: {{ .Values.cozystack.apiServerPort | quote }}}
{{- end }}
{{- end }}

{{- define "installer.tolerations" -}}
- {key: node.kubernetes.io/not-ready, operator: Exists}
- {key: node.kubernetes.io/unreachable, operator: Exists}
- {key: node.cilium.io/agent-not-ready, operator: Exists}
- {key: node.cloudprovider.kubernetes.io/uninitialized, operator: Exists}
{{- end }}

{{- define "installer.hook" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded,hook-failed
{{- end }}
