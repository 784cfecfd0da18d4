package live

import (
	"context"
	"slices"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/verify"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
)

// rolePage is how many roles are read at a time: one may have thousands of rules.
const rolePage = 200

// rights reads what the accounts of running workloads may do: the bindings, and of the
// roles those that they name. Aggregated roles are taken as they are.
func (in *reading) rights(ctx context.Context) error {
	if len(in.running) == 0 {
		return nil
	}
	var accounts []behaviour.Account
	for _, c := range in.running {
		accounts = append(accounts, in.account(c))
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
	for i, c := range in.running {
		direct := func(b behaviour.Binding) bool {
			d, _ := b.Grants(accounts[i])
			return !d
		}
		// What a group may do is its own affair, and only compared between clusters.
		have := behaviour.Rights(accounts[i], slices.DeleteFunc(slices.Clone(bindings), direct), live)
		// The workload may have got another account than the rendered one.
		rendered := behaviour.Account{Namespace: accounts[i].Namespace, Name: behaviour.FromWorkload(in.wanted.Objects.Get(c.Wanted.Workload).Tree()).Account}
		want := behaviour.Rights(rendered, slices.DeleteFunc(slices.Clone(declared), func(b behaviour.Binding) bool {
			d, _ := b.Grants(rendered)
			return !d
		}), wanted)
		c.Rights = verify.Context{Read: true, Parts: behaviour.Rights(accounts[i], bindings, live), Drift: behaviour.Differing(want, have)}
	}
	return nil
}

// account returns the account of a running workload.
func (in *reading) account(c *controller) behaviour.Account {
	return behaviour.Account{Namespace: c.Wanted.Workload.Namespace, Name: c.template.Account}
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
			}
			return true
		})
		if err != nil {
			return nil, err
		}
	}
	return rules, nil
}
