// Package compat finds the parties that break when a type's definition is replaced:
// stored objects, clients that write or read objects, and controllers.
//
// It compares two CustomResourceDefinitions or CompositeResourceDefinitions, field by
// field in their schemas. A schema is narrower if it accepts fewer objects, and wider if
// it accepts more. Definitions with equal type digests (package types, above) are not
// compared, so changes of documentation alone make no finding. The caller decides
// whether a finding stops a change; allow.go reads the annotation that allows one.
//
// The files: compat.go has the vocabulary and [Compare], definition.go definitions
// and versions, between.go two versions of one definition, schema.go the walk through
// two schemas, embedded.go whole objects in them, defaults.go defaults and what they
// may make invalid, constraints.go the keywords that limit values, branches.go and
// exclusive.go allOf, anyOf, oneOf and not, rules.go CEL, compile.go the API server's
// compiler of CEL, conventions.go the advice on new fields, advice.go all other advice,
// several.go sets of definitions.
//
// A change in a version that is not served is C, unless objects may be stored in that
// version, in which case it is B for these objects. If the stored versions are not known,
// objects may be stored in any version of the old definition.
//
// # Findings
//
// The catalogue has every finding. "B" is breaking, "C" compatible, and "D"
// documentation. "crdify" and "checker" name tools that report the same
// (sigs.k8s.io/crdify v0.5.0, openshift/crd-schema-checker).
//
// About a definition:
//
//	definition-added C, definition-removed B    the other definition is nil
//	group-changed, kind-changed, plural-changed, list-kind-changed,
//	singular-changed, short-name-removed B      spec.group, spec.names; defaults filled in
//	short-name-added, category-added, category-removed C
//	scope-changed B                             spec.scope (crdify)
//	pruning-on B, pruning-off C                 spec.preserveUnknownFields, and
//	                                            x-kubernetes-preserve-unknown-fields of a schema
//	conversion-removed B                        Webhook to None; C if all objects are stored in the
//	                                            only version
//	conversion-added, conversion-review-versions-changed C
//	conversion-rules-removed B                  another webhook replaces the rules: it does not know
//	                                            the fields that they kept in an annotation
//	conversion-rules-added, conversion-rules-changed C
//	storage-version-changed C
//	storage-version-drops B                     the storage version changes, and without a webhook it
//	                                            drops fields of a served version, or of one that
//	                                            objects may be stored in: new objects lose them at
//	                                            once, existing ones at their next write, such as a
//	                                            migration's
//	stored-version-removed B                    status.storedVersions has the version (crdify)
//	version-removed B                           C if it was not served, and the live
//	                                            status.storedVersions is known
//	version-unserved B, version-served C, version-added C
//	version-deprecated, version-undeprecated C, deprecation-warning-changed D
//	versions-disagree B                         without a webhook: an object written in one served
//	                                            version is invalid or loses fields when read or stored
//	                                            in another, and did not before (crdify, one way); or one
//	                                            stored in a version lacks the default of another
//	spelling-changed C                          the digest changes, but not the meaning
//	status-subresource-added, -removed B        the same write has another effect
//	scale-subresource-added, -removed, -changed B   added is C if the schema has no values that scale
//	                                            refuses: replicas that are no number from 0 to 2147483647
//	printer-column-added, -removed, -changed, printer-columns-reordered C
//	selectable-field-added C, -removed B
//
// About a CompositeResourceDefinition only:
//
//	claim-added C, claim-removed B
//	connection-keys-narrowed B, connection-keys-widened C   an empty list stands for all keys
//	composition-changed C                       the default or enforced composition and policies
//
// About fields:
//
//	field-added C                               with warnings of the API conventions as advice
//	                                            (checker's no-bools, no-floats, no-uints, no-maps,
//	                                            lists and conditions without merge keys; a version
//	                                            without status subresource is version-added's)
//	field-removed B                             its values are dropped (crdify, checker)
//	additional-properties-added C, -removed B   a map's values are kept, or dropped
//	additional-properties-refused B, -tolerated C
//	type-changed, type-narrowed, type-widened B integer is narrower than number and than
//	                                            int-or-string; clients break even on a wider type
//	                                            (crdify, checker)
//	default-added, -changed, -removed B         an object without the field changes its meaning (crdify);
//	                                            C for a required field; no finding for a new field,
//	                                            unless a limit around it or a rule that names it may
//	                                            then refuse existing objects (versions-disagree has
//	                                            those of other versions)
//	list-type-changed, list-map-keys-changed,
//	map-type-changed B                          how server-side apply merges; absent is atomic for
//	                                            lists and granular for maps
//	embedded-resource-added B, -removed         B where apiVersion, kind or something of metadata is
//	                                            dropped, else C
//
// About accepted values. These are breaking if they narrow and compatible if they
// widen; under not that is reversed, and under oneOf all of them are breaking, since
// the number of matching branches matters:
//
//	required-added, -removed                    C with a default in the new schema (crdify, checker)
//	nullable-added, -removed
//	enum-added, -removed, enum-value-added,
//	enum-value-removed                          as sets (crdify, checker)
//	maximum-, minimum-, max-length-, min-length-, max-items-, min-items-,
//	max-properties-, min-properties- with added, tightened, loosened, removed
//	                                            exclusive bounds included; an absent lower limit of a
//	                                            size is zero; a bound that the type cannot have, such as
//	                                            3.5 for integers, is the tightest (crdify)
//	multiple-of-added, -tightened, -changed, -loosened, -removed    by divisibility
//	pattern-added, -changed, -removed           patterns are compared as text: a change is breaking
//	format-added, -changed, -removed            for formats that the API server checks; other formats,
//	                                            and formats that every value matches, are compatible;
//	                                            B if the type in CEL changes, and a rule reads the field
//	unique-items-added, -removed
//	any-of-added, -removed, any-of-branch-added, -removed,
//	one-of-added, -removed, one-of-branch-added, -removed,
//	not-added, -removed                         the most similar branches are paired, and findings inside
//	                                            have their own path; branches of allOf count like their
//	                                            content; repeated branches do not count; oneOf is compared
//	                                            like anyOf if its branches plainly exclude each other; an
//	                                            added branch that requires a new field is C
//	rule-added, -changed, -removed              CEL rules are compared by their parsed form; a rule that
//	                                            replaces one with the same message is a change, in no known
//	                                            direction; "self == oldSelf" does not break stored objects;
//	                                            a rule that only reads new fields, and holds without
//	                                            them, is C
//	immutable-added, -removed                   the same for rules that gitopsd.dev/immutable adds: a field
//	                                            that cannot be changed or unset once set
//	rule-refused B                              the API server's own compiler refuses a rule, its
//	                                            message or field path, or estimates that it costs too
//	                                            much (checker), or the rule uses oldSelf in a list that
//	                                            is not of type map: a new rule, or one that was accepted
//	                                            before the schema changed around it
//	rule-message-changed D, rule-reason-changed C
package compat
