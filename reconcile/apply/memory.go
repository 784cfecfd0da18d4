package apply

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"gitopsd.dev/reconcile/apply/managed"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/target"
)

// kindState is the remembered state of one kind's members. The Applier's mutex guards it.
type kindState struct {
	t       kube.Type
	members map[manifest.ID]*member
	// version is a resourceVersion: members are at least that new. If the kind is
	// followed, a watch keeps them current. resourceVersions of one kind grow with each
	// write (KEP-5504).
	version  string
	followed bool
	cancel   func() // ends the watch; nil before it began
	polled   string // why it is listed now and then instead of watched
	// unready are the desired objects that were not ready when their health was last
	// judged. touched are the objects written to since then; stirred means any of them
	// may have been.
	unready []Health
	touched map[manifest.ID]bool
	stirred bool
}

// fewTouched is how many written objects of a kind are read one by one; for more, a list
// of the members is cheaper.
const fewTouched = 8

// touch notes that an object was written to; the mutex is held.
func (s *kindState) touch(ids ...manifest.ID) {
	for _, id := range ids {
		if s.touched == nil {
			s.touched = make(map[manifest.ID]bool)
		}
		s.touched[id] = true
	}
	if s.stirred = s.stirred || len(s.touched) > fewTouched; s.stirred {
		s.touched = nil
	}
}

// waitsFor reports whether the object was not ready; the mutex is held.
func (s *kindState) waitsFor(id manifest.ID) bool {
	return slices.ContainsFunc(s.unready, func(h Health) bool { return h.ID == id })
}

// member is a remembered object of the inventory: some 300 bytes while nothing is wrong
// with it.
type member struct {
	uid, version string
	applied      string // the value of manifest.AppliedAnnotation
	types        string // the value of manifest.TypesAnnotation
	before       string // the value of manifest.HistoryAnnotation
	pkg          string // the value of manifest.PackageLabel
	allowPrune   string // the value of manifest.AllowPruneAnnotation
	adopted      string // the value of manifest.AdoptedAnnotation
	dependsOn    string // the value of manifest.DependsOnAnnotation
	rules        string // the value of manifest.ConversionAnnotation
	rollback     string // the value of manifest.RollbackAnnotation, if the field is ours
	// applies: we are among those who applied it. controlled: a controller owns it.
	// edited: people edited it. automatic: it has target.AutomaticLabel.
	applies, controlled, edited, automatic bool

	// print is the fingerprint of the metadata last seen. fine: the object was then as
	// it had been applied. Otherwise full is its metadata, and drift has the changes that
	// a dry run confirmed.
	print fingerprint
	fine  bool
	full  *metav1.ObjectMeta
	drift string
}

// newMember remembers an object as it was seen. Earlier findings are kept if it
// looks the same.
func newMember(t kube.Type, m *metav1.ObjectMeta, before *member) *member {
	n := &member{
		uid: string(m.UID), version: m.ResourceVersion,
		applied: m.Annotations[manifest.AppliedAnnotation], types: m.Annotations[manifest.TypesAnnotation],
		before: m.Annotations[manifest.HistoryAnnotation],
		pkg:    m.Labels[manifest.PackageLabel], allowPrune: m.Annotations[manifest.AllowPruneAnnotation],
		adopted:   m.Annotations[manifest.AdoptedAnnotation],
		dependsOn: m.Annotations[manifest.DependsOnAnnotation], rules: m.Annotations[manifest.ConversionAnnotation],
		applies: managed.Own(m) != nil, controlled: metav1.GetControllerOfNoCopy(m) != nil, edited: managed.Edited(m),
		automatic: m.Labels[target.AutomaticLabel] == "true",
		print:     fingerprintOf(t, m),
	}
	if value := m.Annotations[manifest.RollbackAnnotation]; value != "" && managed.Owns(m, "metadata", "annotations", manifest.RollbackAnnotation) {
		n.rollback = value
	}
	n.fine = before != nil && before.fine && before.print == n.print && m.DeletionTimestamp == nil
	if !n.fine || n.edited {
		n.full = m
	}
	if before != nil && before.print == n.print && before.applied == n.applied {
		n.drift = before.drift
	}
	return n
}

// approve notes that the object is as it was applied.
func (m *member) approve() {
	m.fine, m.drift = true, ""
	if !m.edited {
		m.full = nil
	}
}

// meta returns the object's metadata, or as much of it as a plan needs.
func (m *member) meta(set string) *metav1.ObjectMeta {
	if m.full != nil {
		return m.full
	}
	o := &metav1.ObjectMeta{
		UID: types.UID(m.uid), ResourceVersion: m.version,
		Labels:      map[string]string{plan.PartOfLabel: set},
		Annotations: make(map[string]string, 2),
	}
	for _, kv := range []struct {
		to         map[string]string
		key, value string
	}{
		{o.Annotations, manifest.AppliedAnnotation, m.applied}, {o.Annotations, manifest.TypesAnnotation, m.types},
		{o.Annotations, manifest.HistoryAnnotation, m.before},
		{o.Labels, manifest.PackageLabel, m.pkg}, {o.Annotations, manifest.AllowPruneAnnotation, m.allowPrune},
		{o.Annotations, manifest.AdoptedAnnotation, m.adopted},
		{o.Annotations, manifest.DependsOnAnnotation, m.dependsOn}, {o.Annotations, manifest.ConversionAnnotation, m.rules},
	} {
		if kv.value != "" {
			kv.to[kv.key] = kv.value
		}
	}
	if m.applies {
		o.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: kube.FieldManager, Operation: metav1.ManagedFieldsOperationApply}}
	}
	if m.automatic {
		o.Labels[target.AutomaticLabel] = "true"
	}
	if m.controlled {
		o.OwnerReferences = []metav1.OwnerReference{{Controller: &m.controlled}}
	}
	return o
}

// state returns the state of a kind, a new one if there is none. The mutex is held.
func (a *Applier) state(t kube.Type) *kindState {
	gk := groupKind(t)
	s := a.kinds[gk]
	if s == nil {
		s = &kindState{members: make(map[manifest.ID]*member), stirred: true}
		a.kinds[gk] = s
	}
	s.t = t
	return s
}

func groupKind(t kube.Type) schema.GroupKind { return schema.GroupKind{Group: t.Group, Kind: t.Kind} }

// known returns the remembered object; nil if there is none. The mutex is held.
func (a *Applier) known(id manifest.ID) *member {
	if s := a.kinds[kindOf(id)]; s != nil {
		return s.members[id]
	}
	return nil
}

// recall adds the members of a followed kind, and reports whether the kind is
// followed.
func (a *Applier) recall(t kube.Type, to map[manifest.ID]*metav1.ObjectMeta) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.kinds[groupKind(t)]
	if s == nil || !s.followed {
		return false
	}
	for id, m := range s.members {
		to[id] = m.meta(a.set.id)
	}
	return true
}

// listed records all members of a kind as they were at version. An object that is
// not among them does not exist.
func (a *Applier) listed(t kube.Type, members map[manifest.ID]*metav1.ObjectMeta, version string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.state(t)
	before := s.members
	s.members = make(map[manifest.ID]*member, len(members))
	for id, m := range members {
		s.members[id] = newMember(t, m, before[id])
	}
	for id := range before {
		if s.members[id] == nil {
			a.vanished(id)
		}
	}
	s.version, s.stirred = version, true
}

// take records an event of a watch, and returns the remembered object before and after
// it; nil if the object is gone or not ours. An event older than the remembered state is
// no news. The mutex is held.
func (a *Applier) take(s *kindState, e kube.Event) (before, after *member, news bool) {
	id, version := s.t.ID(e.Meta.Namespace, e.Meta.Name), e.Meta.ResourceVersion
	if c, _ := resourceversion.CompareResourceVersion(version, s.version); c > 0 {
		s.version = version
	}
	before = s.members[id]
	if before != nil {
		if c, err := resourceversion.CompareResourceVersion(version, before.version); err == nil && c <= 0 {
			return before, before, false // our own write, known already
		}
	}
	if !e.Deleted && a.inv.Membership(id, &e.Meta.ObjectMeta) != plan.Foreign {
		after = newMember(s.t, &e.Meta.ObjectMeta, before)
		s.members[id] = after
		return before, after, true
	}
	delete(s.members, id)
	if before != nil {
		a.vanished(id)
	}
	return before, nil, before != nil
}

// hasLeft reports whether a watch has seen since the plan that the object of a step is no
// member any more.
func (a *Applier) hasLeft(s *plan.Step) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.kinds[kindOf(s.ID)]
	if !s.Member || k == nil || !k.followed {
		return false
	}
	m := k.members[s.ID]
	return m == nil || m.uid != s.UID
}

// memberVersion returns the last resourceVersion at which the object of a step was seen to
// be a member; "" if it is not remembered as one.
func (a *Applier) memberVersion(s *plan.Step) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.known(s.ID)
	if m == nil || m.uid != s.UID || a.inv.Membership(s.ID, m.meta(a.set.id)) != plan.Member {
		return ""
	}
	return m.version
}

// remembersMembers reports whether there are any members.
func (a *Applier) remembersMembers() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.kinds {
		if len(s.members) > 0 {
			return true
		}
	}
	return false
}

// suspect returns the metadata of a member that is not known to be as it was
// applied, with its fingerprint and its known drift; nil for any other object.
func (a *Applier) suspect(id manifest.ID) (meta *metav1.ObjectMeta, print fingerprint, drift string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.known(id); m != nil && !m.fine {
		return m.full, m.print, m.drift
	}
	return nil, print, ""
}

// convict notes how an object has drifted, unless it was written to meanwhile.
func (a *Applier) convict(id manifest.ID, print fingerprint, drift string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.known(id); m != nil && m.print == print {
		m.drift = drift
	}
}

// wrote remembers an object from the API server's answer to its apply. A later write or
// deletion that a watch reported before the answer arrived takes precedence.
func (a *Applier) wrote(t kube.Type, o *manifest.Object, m *metav1.ObjectMeta) {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := o.ID()
	s := a.state(t)
	s.touch(id)
	if _, known := a.finished[id]; known {
		a.finished[id] = plan.Finished{} // until it is seen finished again
	}
	if before := s.members[id]; before != nil {
		if c, _ := resourceversion.CompareResourceVersion(before.version, m.ResourceVersion); c > 0 {
			return
		}
	} else if c, err := resourceversion.CompareResourceVersion(m.ResourceVersion, s.version); s.followed && err == nil && c <= 0 {
		return
	}
	n := newMember(t, m, nil)
	if added(o, m) == "" {
		n.approve()
	}
	s.members[id] = n
}

// remembers reports whether an object is a member.
func (a *Applier) remembers(id manifest.ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.known(id) != nil
}

// IsAt reports whether a member of a followed kind has a resourceVersion. It sends
// nothing, and is false for members of other kinds.
func (a *Applier) IsAt(id manifest.ID, version string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.known(id)
	return m != nil && a.kinds[kindOf(id)].followed && m.version == version
}

// remembered returns the metadata of a member as it was last seen; nil if it is not
// known in full.
func (a *Applier) remembered(id manifest.ID) *metav1.ObjectMeta {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.known(id); m != nil {
		return m.full
	}
	return nil
}

// gone forgets an object that no longer exists, but not a newer one of the same name.
func (a *Applier) gone(id manifest.ID, uid string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.kinds[kindOf(id)]; s != nil {
		if m := s.members[id]; m != nil && m.uid == uid {
			delete(s.members, id)
		}
		s.touch(id)
	}
}

// goes remembers an object that is being deleted, from the answer to its delete. A
// watch may have reported later events by then, even that the object is gone.
func (a *Applier) goes(t kube.Type, id manifest.ID, m *metav1.ObjectMeta) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.kinds[kindOf(id)]; s != nil {
		before := s.members[id]
		if before != nil && before.uid == string(m.UID) {
			if c, err := resourceversion.CompareResourceVersion(m.ResourceVersion, before.version); err != nil || c > 0 {
				s.members[id] = newMember(t, m, before)
			}
		}
		s.touch(id)
	}
}

// approve notes that an object is as it was applied, unless it was written to since
// it was looked at.
func (a *Applier) approve(id manifest.ID, print fingerprint) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.known(id); m != nil && m.print == print {
		m.approve()
	}
}
