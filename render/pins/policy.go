package pins

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"gitopsd.dev/render/manifest"
)

// Expressions of the policies. TYPE and CONTROLLER stand for the annotations.
const (
	pinned = `has(object.metadata.annotations) && ('TYPE' in object.metadata.annotations || 'CONTROLLER' in object.metadata.annotations)`
	// An object that is being deleted must still accept updates.
	staying = `!has(object.metadata.deletionTimestamp)`
	// changed is false for an update of metadata and status that leaves the pins.
	changed = `oldObject == null || !has(oldObject.metadata.annotations)` +
		` || ['TYPE', 'CONTROLLER'].exists(a, (a in object.metadata.annotations) != (a in oldObject.metadata.annotations)` +
		` || a in object.metadata.annotations && object.metadata.annotations[a] != oldObject.metadata.annotations[a])` +
		` || object.exists(k, !(k in ['metadata', 'status']) && (!(k in oldObject) || object[k] != oldObject[k]))` +
		` || oldObject.exists(k, !(k in ['metadata', 'status']) && !(k in object))`

	resource = `request.resource.resource + '.' + request.resource.group`
	known    = `('type.' + variables.resource) in variables.digests`

	typeFits = `!variables.known || !('TYPE' in object.metadata.annotations)` +
		` || object.metadata.annotations['TYPE'] in variables.digests['type.' + variables.resource].split(' ')`
	controllerFits = `!variables.known || !('CONTROLLER' in object.metadata.annotations)` +
		` || ('controller.' + variables.resource) in variables.digests && variables.digests['controller.' + variables.resource] == object.metadata.annotations['CONTROLLER']`

	typeMessage = `'it is pinned to another type (TYPE: ' + object.metadata.annotations['TYPE'] + ') than ' + variables.resource + ' has in this cluster (' + variables.digests['type.' + variables.resource] + ')` +
		`; bring the cluster to that type, or renew the pin with "gitopsd types pin --update"'`
	controllerMessage = `'it is pinned to another controller (CONTROLLER: ' + object.metadata.annotations['CONTROLLER'] + ') than ' + variables.resource + ' has in this cluster ('` +
		` + (('controller.' + variables.resource) in variables.digests ? variables.digests['controller.' + variables.resource] : 'none is known') + ')` +
		`; bring the cluster to that controller, or renew the pin with "gitopsd types pin --update"'`
)

var annotations = strings.NewReplacer("TYPE", manifest.PinAnnotation, "CONTROLLER", manifest.ControllerAnnotation)

// entry begins the entry of a key in the map of digests. Names in definitions may be anything.
func entry(key string) string { return strconv.QuoteToASCII(key) + ": " }

// digestsVariable is the name of the variable with the digests.
const digestsVariable = "digests"

// dataOf returns the expression with the digests of a policy.
func dataOf(policy *manifest.Object) string {
	for _, v := range manifest.List(policy.Tree(), "spec", "variables") {
		if v, _ := v.(map[string]any); v["name"] == digestsVariable {
			return manifest.Text(v, "expression")
		}
	}
	return ""
}

// policySpec returns the spec of a policy for some definitions.
func policySpec(parts []part) map[string]any {
	all := make(map[string]string)
	var groups []string
	for _, p := range parts {
		maps.Copy(all, p.data)
		if !slices.Contains(groups, p.group) {
			groups = append(groups, p.group)
		}
	}
	slices.Sort(groups)
	var data strings.Builder
	for i, key := range slices.Sorted(maps.Keys(all)) {
		if i > 0 {
			data.WriteString(",\n")
		}
		data.WriteString(entry(key) + strconv.QuoteToASCII(all[key]))
	}
	named := func(name, expression string) map[string]any {
		return map[string]any{"name": name, "expression": annotations.Replace(expression)}
	}
	validation := func(expression, messageExpression, message string) map[string]any {
		return map[string]any{
			"expression": annotations.Replace(expression), "messageExpression": annotations.Replace(messageExpression),
			"message": message, "reason": "Invalid",
		}
	}
	return map[string]any{
		"failurePolicy": "Fail",
		"matchConstraints": map[string]any{
			"resourceRules": []any{map[string]any{
				"apiGroups": manifest.FromTexts(groups), "apiVersions": []any{"*"}, "resources": []any{"*"}, "operations": []any{"CREATE", "UPDATE"}, "scope": "*",
			}},
		},
		"matchConditions": []any{named("pinned", pinned), named("staying", staying), named("changed", changed)},
		"variables": []any{
			map[string]any{"name": digestsVariable, "expression": "{\n" + data.String() + "\n}"}, named("resource", resource), named("known", known),
		},
		"validations": []any{
			validation(typeFits, typeMessage, "it is pinned to another type than this cluster has"),
			validation(controllerFits, controllerMessage, "it is pinned to another controller than this cluster has"),
		},
	}
}
