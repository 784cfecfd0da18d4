package compat

import (
	"maps"
	"slices"

	"gitopsd.dev/render/manifest"
)

// advice has a line for every finding except changes of constraints, which share their
// advice; see adviceOn.
var advice = map[string]string{
	"definition-added":   "nothing to do: nobody has objects of it yet",
	"definition-removed": "delete or move every object first: removing the definition deletes them all",
	"group-changed":      "publish the new group beside the old one and move the objects",
	"kind-changed":       "publish the new kind beside the old one and move the objects",
	"plural-changed":     "publish the new name beside the old one and move the objects",
	"list-kind-changed":  "rebuild clients that decode lists",
	"singular-changed":   "change scripts that use the old name",
	"short-name-removed": "change scripts that use the short name",
	"short-name-added":   "make sure that no other type in the cluster has it",
	"category-removed":   "name the type where a script gets the category",
	"category-added":     "expect the objects in kubectl get of the category",
	ScopeChanged:         "publish a new kind: the API server refuses to change a scope",
	"pruning-on":         "write the fields in use into the schema first: those that are not in it are dropped",
	"pruning-off":        "expect fields that no schema checks",

	"conversion-removed":                 "run `gitopsd migrate` first, which stores every object again in the storage version: from now on only apiVersion changes",
	"conversion-added":                   "have the webhook running before: without it no object can be read",
	"conversion-rules-removed":           "have the webhook read the annotation " + manifest.ConversionStashAnnotation + ", or lose there what a version cannot hold",
	"conversion-rules-added":             "see that the rules do what the webhook did: `gitopsd convert --check` tries them",
	"conversion-rules-changed":           "see that readers of each version expect what the new rules give: `gitopsd convert --check` tries them",
	"conversion-review-versions-changed": "make sure that the webhook speaks the first of them that the API server knows",
	"storage-version-changed":            "run `gitopsd migrate` once it is applied: it stores every object again in the new version, and cleans status.storedVersions",
	"storage-version-drops":              "convert with a webhook, or give the new storage version all that the served and the stored ones have: the rest is not stored",
	"version-added":                      "nothing to do",
	"version-removed":                    "move all clients to another version before",
	StoredVersionRemoved:                 "make another version the storage version and run `gitopsd migrate` before: it stores every object again, and takes this one out of status.storedVersions",
	"version-unserved":                   "move all clients to another version before",
	"version-served":                     "nothing to do",
	"version-deprecated":                 "move clients to another version",
	"version-undeprecated":               "nothing to do",
	"deprecation-warning-changed":        "nothing to do",
	VersionsDisagree:                     "convert with a webhook, or give all served versions one schema",

	"status-subresource-added":   "make the controller write status through the subresource: elsewhere it is ignored now",
	"status-subresource-removed": "make the controller write status with the object: the subresource is gone",
	"scale-subresource-added":    "check existing objects: replicas must be a number from 0 to 2147483647, and a selector a string, or the object cannot be changed",
	"scale-subresource-removed":  "take autoscalers off the type before",
	"scale-subresource-changed":  "check autoscalers, which read and write another field, and existing objects: replicas there must be a number from 0 to 2147483647, and a selector a string, or the object cannot be changed",
	"printer-column-added":       "check scripts that cut kubectl's columns",
	"printer-column-removed":     "make scripts read JSON, not columns",
	"printer-column-changed":     "make scripts read JSON, not columns",
	"printer-columns-reordered":  "make scripts read JSON, not columns",
	"selectable-field-added":     "nothing to do",
	"selectable-field-removed":   "take the field selector out of clients before: requests with it fail",

	"claim-added":              "nothing to do",
	"claim-removed":            "delete or move every claim before",
	"connection-keys-narrowed": "check who reads the connection secret",
	"connection-keys-widened":  "nothing to do",
	"composition-changed":      "check which composition existing composites get",

	"spelling-changed": "nothing to do but to renew pins: the digest is another, and the API server does the same",

	"field-added":   "nothing to do",
	"field-removed": "stop using the field first: its value is dropped",
	"type-changed":  "give the new type a new name, or publish a new version with conversion",
	"type-narrowed": "bring every object to the new type before",
	"type-widened":  "rebuild clients that decode the old type",

	"default-added":   "expect the value in every object that does not set the field, existing ones too, and check that they are valid with it",
	"default-changed": "set the field where the old value is wanted: objects not yet written since it was defaulted change too",
	"default-removed": "set the field where the value is wanted",

	"list-type-changed":     "check who applies the list: server-side apply merges it another way now",
	"list-map-keys-changed": "check who applies the list: server-side apply merges it another way now",
	"map-type-changed":      "check who applies the map: server-side apply merges it another way now",

	"any-of-branch-added":   "nothing to do",
	"any-of-branch-removed": "change objects that are valid only by this alternative before",
	"one-of-branch-added":   "check objects that are valid by another alternative too: more than one is an error",
	"one-of-branch-removed": "change objects that are valid only by this alternative before",

	"additional-properties-added":     "expect keys that no schema names",
	"additional-properties-removed":   "stop using other keys first: they are dropped",
	"additional-properties-refused":   "stop using other keys first: they are errors",
	"additional-properties-tolerated": "nothing to do",

	"immutable-added":   "check that no client changes or unsets the field: where it has a value, that value stays",
	"immutable-removed": "expect the field to change",

	"rule-added":           "check existing objects against the rule: those that break it cannot be changed",
	"rule-changed":         "check existing objects against the rule: those that break it cannot be changed",
	"rule-removed":         "nothing to do",
	"rule-message-changed": "nothing to do",
	"rule-reason-changed":  "check clients that look at the reason",
	"rule-refused":         "correct the rule, or limit the sizes of the values that it reads: the API server refuses the definition",
}

// constraints lists the keywords with findings named KEYWORD-CHANGE, and the changes of
// each.
var constraints = map[string][]string{
	"format":            {"added", "changed", "removed"},
	"enum":              {"added", "removed"},
	"enum-value":        {"added", "removed"},
	"required":          {"added", "removed"},
	"nullable":          {"added", "removed"},
	"unique-items":      {"added", "removed"},
	"embedded-resource": {"added", "removed"},
	"pattern":           {"added", "changed", "removed"},
	"multiple-of":       {"added", "tightened", "changed", "loosened", "removed"},
	"maximum":           {"added", "tightened", "loosened", "removed"},
	"minimum":           {"added", "tightened", "loosened", "removed"},
	"max-length":        {"added", "tightened", "loosened", "removed"},
	"min-length":        {"added", "tightened", "loosened", "removed"},
	"max-items":         {"added", "tightened", "loosened", "removed"},
	"min-items":         {"added", "tightened", "loosened", "removed"},
	"max-properties":    {"added", "tightened", "loosened", "removed"},
	"min-properties":    {"added", "tightened", "loosened", "removed"},
	"any-of":            {"added", "removed"},
	"one-of":            {"added", "removed"},
	"not":               {"added", "removed"},
}

// The advice on a constraint depends only on the direction of the change.
const (
	narrowedAdvice = "check existing objects: those that do not comply cannot be changed"
	widenedAdvice  = "expect values that were refused before"
)

// unfilledAdvice is the advice if one version has a default that another lacks.
const unfilledAdvice = "give the version that objects are stored in the same default, or make this one the storage version and run `gitopsd migrate` before anybody reads it"

// Names returns the names of all findings, sorted.
func Names() []string {
	all := slices.Collect(maps.Keys(advice))
	for keyword, ends := range constraints {
		for _, end := range ends {
			all = append(all, keyword+"-"+end)
		}
	}
	slices.Sort(all)
	return all
}

// adviceOn returns the advice on a finding.
func adviceOn(f Finding) string {
	switch {
	case advice[f.Name] != "":
		return advice[f.Name]
	case f.Severity == Breaking:
		return narrowedAdvice
	}
	return widenedAdvice
}
