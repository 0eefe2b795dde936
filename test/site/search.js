// A section is found if it has every word; a word in its title counts more than in its text.
const field = document.getElementById("search"), found = document.getElementById("found");
field.addEventListener("input", () => {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  const hits = [];
  for (const s of words.length ? sections : []) {
    const title = s.t.toLowerCase(), text = s.x.toLowerCase();
    if (!words.every(w => title.includes(w) || text.includes(w))) continue;
    hits.push([words.filter(w => title.includes(w)).length, s]);
  }
  hits.sort((a, b) => b[0] - a[0]);
  found.hidden = !words.length;
  found.replaceChildren(...hits.slice(0, 20).map(([, s]) => {
    const a = document.createElement("a"), item = document.createElement("li");
    a.href = document.body.dataset.up + s.u;
    a.textContent = s.t;
    item.append(a);
    return item;
  }));
  if (words.length && !hits.length) found.textContent = "No section has all of these words.";
});
