package preview

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"
	"testing"
)

// The comment of WriteJSON documents every field.
func TestJSONIsDocumented(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "json.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var doc string
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == "WriteJSON" {
			doc = f.Doc.Text()
		}
	}
	names := make(map[string]bool)
	jsonNames(reflect.TypeFor[fleetJSON](), names)
	for name := range names {
		if !strings.Contains(doc, `"`+name+`":`) {
			t.Errorf("field %q is not documented", name)
		}
	}
}

// jsonNames collects the JSON names of a struct's fields, recursively.
func jsonNames(t reflect.Type, names map[string]bool) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		jsonNames(t.Elem(), names)
	case reflect.Struct:
		if !strings.HasSuffix(t.PkgPath(), "/cmd/gitopsd/preview") {
			return // its own package documents it
		}
		for i := range t.NumField() {
			f := t.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if !f.Anonymous {
				names[name] = true
			}
			jsonNames(f.Type, names)
		}
	}
}
