package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// settingsPut changes settings of the group. An empty value takes a setting back: what each node was started with counts again.
type settingsPut struct{ settings []Setting }

// Setting is a setting of the group that was changed while it ran. What the names and values mean is not the state machine's.
type Setting struct{ Name, Value string }

// AppendSettings appends the body of a RecordSettings to dst. The settings must be in ascending order of their names.
func AppendSettings(dst []byte, settings []Setting) []byte {
	dst = put32(dst, uint32(len(settings)))
	for _, v := range settings {
		dst = putString(putString(dst, v.Name), v.Value)
	}
	return dst
}

func (d *decoder) settings() []Setting {
	var all []Setting
	for i := range d.count(8) {
		all = append(all, Setting{d.name(), d.str()})
		if d.err == nil && i > 0 && all[i-1].Name >= all[i].Name {
			d.fail(errOrder)
		}
	}
	if d.err == nil && len(all) == 0 {
		d.fail(fmt.Errorf("no setting"))
	}
	return all
}

// applySettings replaces the map, which clones share.
func (s *State) applySettings(c settingsPut) Effect {
	next := maps.Clone(s.settings)
	if next == nil {
		next = map[string]string{}
	}
	for _, v := range c.settings {
		if v.Value == "" {
			delete(next, v.Name)
		} else {
			next[v.Name] = v.Value
		}
	}
	if maps.Equal(next, s.settings) {
		return Effect{Kind: EffectNone}
	}
	s.settings = next
	s.touchTopics() // what the name servers are told of topics follows from settings too
	return Effect{Kind: EffectSettings}
}

// Setting returns the value of a setting that was changed, false for one that was not.
func (s *State) Setting(name string) (string, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	v, ok := s.settings[name]
	return v, ok
}

// HasSetting is Setting for a name that was put together; it makes no garbage.
func (s *State) HasSetting(name []byte) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, ok := s.settings[string(name)]
	return ok
}

// Settings returns the settings that were changed, sorted by name.
func (s *State) Settings() []Setting {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sortedSettings()
}

func (s *State) sortedSettings() []Setting {
	all := make([]Setting, 0, len(s.settings))
	for name, v := range s.settings {
		all = append(all, Setting{name, v})
	}
	slices.SortFunc(all, func(a, b Setting) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// The section of settings has the form of the command.
func (s *State) writeSettings(k *sink) { k.b = AppendSettings(k.b, s.sortedSettings()) }

func (s *State) readSettings(d *decoder) {
	s.settings = map[string]string{}
	for _, v := range d.settings() {
		if v.Value == "" && d.err == nil {
			d.fail(fmt.Errorf("setting %q has no value", strings.ToValidUTF8(v.Name, "")))
		}
		s.settings[v.Name] = v.Value
	}
}
