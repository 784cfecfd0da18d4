package cel

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"

	"gitopsd.dev/render/exact"
)

// positional has the values of variables, in the order of their names.
type positional struct {
	names  []string
	values []any
}

func (p positional) ResolveName(name string) (any, bool) {
	i := slices.Index(p.names, name)
	if i < 0 || i >= len(p.values) {
		return nil, false
	}
	return p.values[i], true
}

func (p positional) Parent() cel.Activation { return nil }

// adapter converts values of package exact to CEL's.
type adapter struct{ types.Adapter }

func (a adapter) NativeToValue(v any) ref.Val {
	switch v := v.(type) {
	case json.Number:
		f, err := v.Float64()
		if err != nil {
			return types.NewErr("%s is not a number that CEL can hold", v)
		}
		return types.Double(f)
	case map[string]any:
		return types.NewStringInterfaceMap(a, v)
	case []any:
		return objectList{types.NewDynamicList(a, v), v}
	case string:
		return types.String(v)
	}
	return a.Adapter.NativeToValue(v)
}

// objectList is a list in an object, as opposed to one that an expression made.
type objectList struct {
	traits.Lister
	list []any
}

// native converts a CEL value to the types of package exact. It fails for values that no
// object can hold.
func native(v ref.Val) (any, error) {
	// Maps of the object keep their numbers.
	if m, ok := v.Value().(map[string]any); ok {
		return m, nil
	}
	switch v := v.(type) {
	case objectList:
		return v.list, nil
	case types.String:
		return string(v), nil
	case types.Int:
		return int64(v), nil
	case types.Bool:
		return bool(v), nil
	case types.Null:
		return nil, nil
	case types.Double:
		if n, ok := exact.Float(float64(v)); ok {
			return n, nil
		}
		return nil, errors.New("the result is not a finite number")
	case traits.Lister:
		list := []any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			item, err := native(it.Next())
			if err != nil {
				return nil, err
			}
			list = append(list, item)
		}
		return list, nil
	case traits.Mapper:
		m := map[string]any{}
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			name, ok := key.(types.String)
			if !ok {
				return nil, fmt.Errorf("a map has a key of type %s; want string", key.Type().TypeName())
			}
			item, err := native(v.Get(key))
			if err != nil {
				return nil, err
			}
			m[string(name)] = item
		}
		return m, nil
	}
	return nil, fmt.Errorf("the result is of type %s, which no field holds", v.Type().TypeName())
}
