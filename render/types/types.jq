# The canonical form of every type that an object defines, one a line:
# "group/version kind form". TYPES.md says what the form is. Runs on jq 1.6 and
# newer; input is one object, a List, or a stream of either, as JSON.

# A number's decimal digits without zeros at the end, and a power of ten.
def number:
  tostring
  | capture("^(?<s>-?)(?<i>[0-9]+)(\\.(?<f>[0-9]+))?([eE](?<e>[-+]?[0-9]+))?$")
  | (.f // "") as $f
  | (.i + $f | sub("^0+"; "")) as $d
  | ($d | sub("0+$"; "")) as $m
  | ((.e // "0" | ltrimstr("+") | tonumber) + ($d | length) - ($m | length) - ($f | length)) as $e
  | if $m == "" then "0" else .s + $m + (if $e == 0 then "" else "e\($e)" end) end;

# jq 1.8 no longer escapes U+007F.
def string: tojson | split("\u007f") | join("\\u007f");

# Canonical JSON.
def text:
  if type == "object" then "{" + ([keys[] as $k | ($k | string) + ":" + (.[$k] | text)] | join(",")) + "}"
  elif type == "array" then "[" + (map(text) | join(",")) + "]"
  elif type == "number" then number
  elif type == "string" then string
  else tojson end;

# Lists without a meaningful order.
def bag: sort_by(text);
def set: unique_by(text);

# Adds a field unless it is null or one of the values that mean absent.
def field($k; $v): if $v == null or $v == "" or $v == false or $v == [] then . else .[$k] = $v end;

def rule: . as $r
  | reduce ("fieldPath", "message", "messageExpression", "optionalOldSelf", "reason", "rule") as $k
      ({}; field($k; $r[$k]));

def schema:
  if . == null then {} else . as $s
  | reduce keys[] as $k ({}; $s[$k] as $v
    | if $v == null then .
      elif $k | IN("type", "format", "pattern", "nullable", "exclusiveMaximum", "exclusiveMinimum",
          "uniqueItems", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource",
          "x-kubernetes-int-or-string", "x-kubernetes-list-type", "x-kubernetes-map-type") then field($k; $v)
      elif $k | IN("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties",
          "default") then .[$k] = $v
      elif $k | IN("maximum", "minimum", "multipleOf") then .[$k] = $v + 0
      elif $k | IN("enum", "required", "x-kubernetes-list-map-keys") then field($k; $v | set)
      elif $k | IN("allOf", "anyOf", "oneOf") then field($k; $v | map(schema) | bag)
      elif $k == "x-kubernetes-validations" then field($k; $v | map(rule) | bag)
      elif $k == "properties" then if $v == {} then . else .[$k] = ($v | map_values(schema)) end
      elif $k == "not" or $k == "items" and ($v | type) == "object" then .[$k] = ($v | schema)
      elif $k == "items" and ($v | type) != "array" then .
      elif $k == "additionalProperties" then .[$k] = ($v | if type == "boolean" then . else schema end)
      elif $k | IN("items", "id", "$schema", "$ref", "patternProperties", "dependencies", "additionalItems",
          "definitions") then # refused by the API server
        if $v == "" or $v == {} or $v == [] then . else .[$k] = $v end
      else . end) # documentation, and keywords that the API server does not know
  end;

def column: . as $c
  | reduce ("format", "jsonPath", "name", "type") as $k ({}; field($k; $c[$k]))
  | if ($c.priority // 0) == 0 then . else .priority = $c.priority end;

def columns:
  if . == null or . == [] then [{name: "Age", type: "date", jsonPath: ".metadata.creationTimestamp"}]
  else map(column) end;

def subresources:
  if .scale == null and .status == null then null else . as $s
  | {}
  | if $s.status == null then . else .status = {} end
  | if $s.scale == null then . else .scale = ($s.scale as $scale
      | reduce ("labelSelectorPath", "specReplicasPath", "statusReplicasPath") as $k ({}; field($k; $scale[$k]))) end
  end;

def names: . as $n
  | reduce ("kind", "plural") as $k ({}; field($k; $n[$k]))
  | field("listKind"; if ($n.listKind // "") == "" then $n.kind + "List" else $n.listKind end)
  | field("singular"; if ($n.singular // "") == "" then ($n.kind | ascii_downcase) else $n.singular end)
  | field("shortNames"; $n.shortNames // [] | set)
  | field("categories"; $n.categories // [] | set);

def conversion:
  if . == null then {strategy: "None"} else
    (.webhook.conversionReviewVersions) as $r | .strategy as $s
    | {} | field("strategy"; $s) | if $r == null then . else .conversionReviewVersions = $r end
  end;

def version($crd): . as $v
  | {additionalPrinterColumns: .additionalPrinterColumns | columns, schema: .schema.openAPIV3Schema | schema}
  | reduce ("deprecated", "deprecationWarning", "name", "served") as $k (.; field($k; $v[$k]))
  | field("selectableFields"; $v.selectableFields // [] | map(.jsonPath) | set)
  | if $crd then field("subresources"; $v.subresources | if . == null then null else subresources end) else . end;

# The fields that an object's types share.
def shared($kind; $scope; $storage): .spec as $s
  | {conversion: ($s.conversion | conversion), group: $s.group, names: ($kind | names), scope: $scope,
     storage: ([$s.versions[] | select(.[$storage] == true) | .name] | last // "")};

# What a CompositeResourceDefinition adds.
def composite: .spec as $s
  | {defaultCompositeDeletePolicy: ($s.defaultCompositeDeletePolicy // "Background"),
     defaultCompositionUpdatePolicy: ($s.defaultCompositionUpdatePolicy // "Automatic")}
  | field("connectionSecretKeys"; $s.connectionSecretKeys // [] | set)
  | reduce ("defaultCompositionRef", "defaultCompositionRevisionSelector", "enforcedCompositionRef") as $k
      (.; if $s[$k] == null then . else .[$k] = $s[$k] end);

def forms:
  if .kind == "List" then .items[] | forms
  elif .kind == "ManagedResourceDefinition" and (.apiVersion | startswith("apiextensions.crossplane.io/")) then
    .kind = "CustomResourceDefinition" | .apiVersion = "apiextensions.k8s.io/v1"
    | .spec.scope = (.spec.scope // "Namespaced") | .spec.versions |= sort_by(.name) | forms
  elif .kind == "CustomResourceDefinition" and .apiVersion == "apiextensions.k8s.io/v1" then
    .spec as $s
    | shared($s.names; $s.scope; "storage")
    | field("preserveUnknownFields"; $s.preserveUnknownFields)
    | .version = ($s.versions[] | version(true))
  elif .kind == "CompositeResourceDefinition" and (.apiVersion | IN("apiextensions.crossplane.io/v1", "apiextensions.crossplane.io/v2")) then
    .spec as $s
    | (if .apiVersion | endswith("v2") then "Namespaced" else "LegacyCluster" end) as $scope
    | composite as $c
    | (shared($s.names; $s.scope // $scope; "referenceable")
       | .composite = ($c | field("claimedBy"; $s.claimNames.kind))),
      (if $s.claimNames == null then empty else
         shared($s.claimNames; "Namespaced"; "referenceable") | .composite = ($c | .claimOf = $s.names.kind) end)
    | .version = ($s.versions[] | version(false))
  else empty end;

forms | "\(.group)/\(.version.name) \(.names.kind) \(text)"
