// Package compat finds who breaks when another definition takes the place of a
// type's: objects in etcd, clients that write or read objects, and controllers.
//
// It compares two CustomResourceDefinitions or CompositeResourceDefinitions,
// place by place in their schemas. A schema is narrower if it accepts fewer
// objects, and wider if it accepts more. Definitions with equal type
// digests (package types, above) are not looked at, so documentation never makes
// a finding. Whether a finding stops anything is for the caller: allow.go reads
// the annotation with which a user allows one.
//
// The files: compat.go has the vocabulary and Compare, definition.go what is
// about a definition or a version, between.go what is about two versions of one
// definition, schema.go the walk through two schemas, embedded.go whole objects
// in them, defaults.go defaults and what they may make invalid, constraints.go
// the keywords that limit values, branches.go and exclusive.go allOf, anyOf, oneOf
// and not, rules.go CEL, conventions.go the advice on new fields, advice.go the
// advice on everything, several.go sets of definitions.
//
// What changes in a version that is not served is C, unless objects may be stored
// in it: then it is B for those. Where nobody says what is stored, any version that
// there was may be.
//
// # Findings
//
// Each is decided as said here. "crdify" and "checker" name the rival that
// reports the same (sigs.k8s.io/crdify v0.5.0, openshift/crd-schema-checker);
// without either, none of them does. "B" is breaking, "C" compatible, "D"
// documentation.
//
// Of a definition:
//
//	definition-added C, definition-removed B    there is no other one
//	group-changed, kind-changed, plural-changed, list-kind-changed,
//	singular-changed, short-name-removed B      spec.group, spec.names; defaults filled in
//	short-name-added, category-added, category-removed C
//	scope-changed B                             spec.scope (crdify)
//	pruning-on B, pruning-off C                 spec.preserveUnknownFields, and
//	                                            x-kubernetes-preserve-unknown-fields of a schema
//	conversion-removed B                        Webhook to None; C if objects are stored in the one
//	                                            version there is
//	conversion-added, conversion-review-versions-changed C
//	storage-version-changed C
//	storage-version-drops B                     the storage version is another, and without a webhook
//	                                            it does not keep what a served version has: new
//	                                            objects lose it at once, existing ones when they are
//	                                            next written
//	stored-version-removed B                    status.storedVersions has it (crdify)
//	version-removed B                           it was served, or may be stored; C if the live
//	                                            storedVersions has it not
//	version-unserved B, version-served C, version-added C
//	version-deprecated, version-undeprecated C, deprecation-warning-changed D
//	versions-disagree B                         without a webhook: an object written in one served
//	                                            version is invalid or loses fields when read or stored
//	                                            in another, and did not before (crdify, one way)
//	spelling-changed C                          the digest is another, and everything means the same
//	status-subresource-added, -removed B        the same write does something else
//	scale-subresource-added C, -removed, -changed B
//	printer-column-added, -removed, -changed, printer-columns-reordered C
//	selectable-field-added C, -removed B
//
// Of a CompositeResourceDefinition alone:
//
//	claim-added C, claim-removed B
//	connection-keys-narrowed B, connection-keys-widened C   no keys are all keys
//	composition-changed C                       the default or enforced composition and policies
//
// Of what fields there are:
//
//	field-added C                               with what the API conventions warn of as advice
//	                                            (checker's no-bools, no-floats, no-uints, no-maps,
//	                                            lists and conditions without merge keys; a version
//	                                            without status subresource is version-added's)
//	field-removed B                             and its values are dropped (crdify, checker)
//	additional-properties-added C, -removed B   a map's values are kept, or dropped
//	additional-properties-refused B, -tolerated C
//	type-changed, type-narrowed, type-widened B integer is narrower than number and than
//	                                            int-or-string; clients break even on a wider type
//	                                            (crdify, checker)
//	default-added, -changed, -removed B         what an object means that leaves the field out (crdify);
//	                                            that of a required field is C, that of a new field
//	                                            none, unless a limit around the field or a rule that
//	                                            names it may refuse existing objects then
//	list-type-changed, list-map-keys-changed,
//	map-type-changed B                          how server-side apply merges; absent is atomic for
//	                                            lists and granular for maps
//	embedded-resource-added B, -removed         B where apiVersion, kind or something of metadata is
//	                                            dropped, else C
//
// Of which values are accepted. These are breaking if they narrow and compatible
// if they widen; under not that is reversed, and under oneOf every one of them
// is breaking, since it matters how many branches match:
//
//	required-added, -removed                    C with a default in the new schema (crdify, checker)
//	nullable-added, -removed
//	enum-added, -removed, enum-value-added,
//	enum-value-removed                          as sets (crdify, checker)
//	maximum-, minimum-, max-length-, min-length-, max-items-, min-items-,
//	max-properties-, min-properties- with added, tightened, loosened, removed
//	                                            exclusive bounds included; an absent lower limit of a
//	                                            size is zero (crdify)
//	multiple-of-added, -tightened, -changed, -loosened, -removed    by divisibility
//	pattern-added, -changed, -removed           which of two patterns accepts more is not decided:
//	                                            a change is breaking
//	format-added, -changed, -removed            for formats that the API server checks; others are
//	                                            compatible, and those that any value has
//	unique-items-added, -removed
//	any-of-added, -removed, any-of-branch-added, -removed,
//	one-of-added, -removed, one-of-branch-added, -removed,
//	not-added, -removed                         branches are paired with the one most like them, and
//	                                            what differs inside has a path of its own; an allOf's
//	                                            branch counts like its content, and a repeated one
//	                                            is none; oneOf is as anyOf where its branches plainly
//	                                            exclude each other
//	rule-added, -changed, -removed              CEL rules by what they parse to; a rule that replaces one with
//	                                            the same message is a change, in no known direction;
//	                                            rules with oldSelf leave stored objects alone
//	rule-refused B                              the API server's own compiler refuses a new rule, its
//	                                            message or field path, or estimates that it costs too
//	                                            much (checker)
//	rule-message-changed D, rule-reason-changed C
package compat
