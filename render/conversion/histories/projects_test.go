package histories

import "gitopsd.dev/testscripts/upstream"

var kueue = history{
	name:   "kueue",
	module: upstream.KueueModule,
	group:  "kueue.x-k8s.io",
	spoke:  "apis/kueue/v1beta1", hub: "apis/kueue/v1beta2",
	kinds: []kind{
		{name: "LocalQueue", plural: "localqueues", definition: "config/components/crd/bases/kueue.x-k8s.io_localqueues.yaml"},
		{name: "Cohort", plural: "cohorts", definition: "config/components/crd/bases/kueue.x-k8s.io_cohorts.yaml", untested: true},
		{name: "ClusterQueue", plural: "clusterqueues", definition: "config/components/crd/bases/kueue.x-k8s.io_clusterqueues.yaml"},
	},
	tests: "^Test(LocalQueue|Cohort|ClusterQueue)Conver",
	passed: []string{"TestClusterQueueConvertTo", "TestClusterQueueConvertFrom", "TestClusterQueueConversion_RoundTrip",
		"TestLocalQueueConvertTo/multiple_FlavorUsage_with_various_resources", "TestLocalQueueConvertFrom/with_conditions_and_status_fields"},
	beyond: []beyond{
		{"TestLocalQueueConvertTo/with_conditions_and_status_fields", "it compares nanoseconds, and times in JSON have seconds"},
		{"TestLocalQueueConvertFrom/empty_FlavorsUsage", "v1beta2 leaves an empty list out of its JSON"},
		{"TestLocalQueueConversion_RoundTrip/LocalQueue_with_empty_FlavorUsage", "v1beta2 leaves an empty list out of its JSON"},
	},
	found: []finding{{"ClusterQueue", "v1beta1 -> v1beta2 -> v1beta1: spec.admissionChecks does not come back as it was after an edit",
		"who edits the list of objects gets a list of objects, and not of names"}},
}

var externalSecrets = history{
	name:   "external-secrets",
	module: upstream.ExternalSecretsModule,
	group:  "external-secrets.io",
	spoke:  "apis/externalsecrets/v1alpha1", hub: "apis/externalsecrets/v1beta1",
	kinds:  []kind{{name: "ExternalSecret", plural: "externalsecrets", definition: "config/crds/bases/external-secrets.io_externalsecrets.yaml"}},
	tests:  "^TestExternalSecretConvert",
	passed: []string{"TestExternalSecretConvertFrom", "TestExternalSecretConvertTo"},
	explained: []difference{
		{"ExternalSecret", "v1alpha1", "spec.dataFrom", "the project leaves out what has an empty key or none"},
		{"ExternalSecret", "v1beta1", "spec.dataFrom[].extract", "the project writes an empty key where there is none"},
		{"ExternalSecret", "v1alpha1", "spec.dataFrom[].conversionStrategy", "the project forgets it"},
		{"ExternalSecret", "v1beta1", "spec.dataFrom[].extract.conversionStrategy", "the project forgets it"},
	},
}

var clusterAPI = history{
	name:   "cluster-api",
	module: upstream.ClusterAPIModule,
	group:  "cluster.x-k8s.io",
	spoke:  "api/core/v1beta1", hub: "api/core/v1beta2",
	kinds: []kind{{name: "MachineDeployment", plural: "machinedeployments", definition: "config/crd/bases/cluster.x-k8s.io_machinedeployments.yaml"}},
	setup: `spoke.SetAPIVersionGetter(func(gk schema.GroupKind) (string, error) {
		if gk.Group == "" {
			return "", nil
		}
		return gk.Group + "/v1beta1", nil
	})`,
	keeps: "cluster.x-k8s.io/conversion-data",
	edits: []edit{
		{"util/conversion/conversion.go", "\nimport (\n", "\nimport (\n\t\"sigs.k8s.io/cluster-api/gitopsdrules\"\n"},
		{"util/conversion/conversion.go", "fuzzer.Fill(spokeBefore)\n", "fuzzer.Fill(spokeBefore)\ngitopsdrules.ThroughJSON(spokeBefore)\n"},
		{"util/conversion/conversion.go", "fuzzer.Fill(hubBefore)\n", "fuzzer.Fill(hubBefore)\ngitopsdrules.ThroughJSON(hubBefore)\n"},
	},
	tests:  "^TestFuzzyConversion$/^for_MachineDeployment$",
	passed: []string{"TestFuzzyConversion/for_MachineDeployment/spoke-hub-spoke", "TestFuzzyConversion/for_MachineDeployment/hub-spoke-hub"},
	explained: []difference{
		{"MachineDeployment", "v1beta1", "spec.template.spec.bootstrap.configRef", "the project takes a reference without a field for none"},
		{"MachineDeployment", "v1beta1", "spec.template.spec.infrastructureRef.namespace", "the project writes the namespace of a reference that is absent"},
		{"MachineDeployment", "v1beta2", "status", "the project writes zeros for counts that are absent"},
		{"MachineDeployment", "v1beta2", "status.deprecated", "the project writes zeros for counts that are absent"},
		{"MachineDeployment", "v1beta2", "status.replicas", "the project writes a zero for a count that is absent"},
	},
}
