package live

import (
	"context"
	"slices"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/verify"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
)

// rolePage is the number of roles in a page of a list: one may have thousands of rules.
const rolePage = 200

// rights reads the rights of the accounts of running workloads: their bindings, and the roles
// that these name. Aggregated roles count as they are live.
func (in *reading) rights(ctx context.Context) error {
	if len(in.running) == 0 {
		return nil
	}
	var accounts []behaviour.Account
	for _, c := range in.running {
		accounts = append(accounts, behaviour.Account{Namespace: c.Wanted.Workload.Namespace, Name: c.template.Account})
	}
	bindings, err := in.bindings(ctx, accounts)
	if err != nil {
		return err
	}
	rules, err := in.roles(ctx, bindings)
	if err != nil {
		return err
	}
	live := func(role manifest.ID) ([]any, bool) {
		all, ok := rules[role]
		return all, ok
	}
	var declared []behaviour.Binding
	for _, o := range in.wanted.Objects.All() {
		if o.ID().Is(manifest.RoleBinding, manifest.ClusterRoleBinding) {
			declared = append(declared, behaviour.ReadBinding(o.Tree()))
		}
	}
	wanted := func(role manifest.ID) ([]any, bool) {
		if o := in.wanted.Objects.Get(role); o != nil && manifest.Mapping(o.Tree(), "aggregationRule") == nil {
			return manifest.List(o.Tree(), "rules"), true
		}
		return live(role)
	}
	// The rights of groups are only compared between clusters.
	direct := func(all []behaviour.Binding, a behaviour.Account) []behaviour.Binding {
		return slices.DeleteFunc(slices.Clone(all), func(b behaviour.Binding) bool {
			direct, _ := b.Grants(a)
			return !direct
		})
	}
	for i, c := range in.running {
		have := behaviour.Rights(accounts[i], direct(bindings, accounts[i]), live)
		// The rendered account, which the live workload may not have.
		rendered := behaviour.Account{Namespace: accounts[i].Namespace, Name: behaviour.FromWorkload(in.wanted.Objects.Get(c.Wanted.Workload).Tree()).Account}
		want := behaviour.Rights(rendered, direct(declared, rendered), wanted)
		c.Rights = verify.Context{Read: true, Parts: behaviour.Rights(accounts[i], bindings, live), Drift: behaviour.Differing(want, have)}
		if len(c.Rights.Drift) > 0 {
			for _, id := range grantors(accounts[i], direct(declared, accounts[i]), direct(bindings, accounts[i]), wanted, live) {
				in.differs(&c.Rights, id)
			}
			if rendered != accounts[i] {
				in.differs(&c.Rights, c.Wanted.Workload)
			}
		}
	}
	return nil
}

// grantors returns the bindings that only one list has, and the roles of the others that grant
// an account something else live than as wanted.
func grantors(a behaviour.Account, declared, bindings []behaviour.Binding, wanted, live func(manifest.ID) ([]any, bool)) []manifest.ID {
	var all []manifest.ID
	in := func(list []behaviour.Binding, b behaviour.Binding) bool {
		return slices.ContainsFunc(list, func(other behaviour.Binding) bool { return other.ID == b.ID && other.Role == b.Role })
	}
	for _, b := range declared {
		one := []behaviour.Binding{b}
		switch {
		case !in(bindings, b):
			all = append(all, b.ID)
		case len(behaviour.Differing(behaviour.Rights(a, one, wanted), behaviour.Rights(a, one, live))) > 0:
			all = append(all, b.Role)
		}
	}
	for _, b := range bindings {
		if !in(declared, b) {
			all = append(all, b.ID)
		}
	}
	return all
}

// bindings reads the bindings that grant something to one of the accounts.
func (in *reading) bindings(ctx context.Context, accounts []behaviour.Account) ([]behaviour.Binding, error) {
	var found []behaviour.Binding
	for _, kind := range []manifest.GroupKind{manifest.ClusterRoleBinding, manifest.RoleBinding} {
		t, err := in.kube.Type(ctx, kind.APIVersion("v1"), kind.Kind)
		if err != nil {
			return nil, err
		}
		err = in.kube.ListFull(ctx, t, kube.ListOptions{}, func(tree map[string]any) bool {
			b := behaviour.ReadBinding(tree)
			if slices.ContainsFunc(accounts, func(a behaviour.Account) bool {
				direct, group := b.Grants(a)
				return direct || group
			}) {
				found = append(found, b)
				in.note(b.ID, tree)
			}
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// roles reads the rules of the roles that bindings refer to. A role that does not exist
// grants nothing.
func (in *reading) roles(ctx context.Context, bindings []behaviour.Binding) (map[manifest.ID][]any, error) {
	rules := make(map[manifest.ID][]any)
	needed := make(map[manifest.GroupKind]bool)
	for _, b := range bindings {
		rules[b.Role] = nil
		needed[b.Role.GroupKind()] = true
	}
	for _, kind := range []manifest.GroupKind{manifest.ClusterRole, manifest.Role} {
		if !needed[kind] {
			continue
		}
		t, err := in.kube.Type(ctx, kind.APIVersion("v1"), kind.Kind)
		if err != nil {
			return nil, err
		}
		err = in.kube.ListFull(ctx, t, kube.ListOptions{Page: rolePage}, func(tree map[string]any) bool {
			id := t.ID(manifest.Text(tree, "metadata", "namespace"), manifest.Text(tree, "metadata", "name"))
			if _, ok := rules[id]; ok {
				rules[id] = manifest.List(tree, "rules")
				in.note(id, tree)
			}
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	return rules, nil
}
