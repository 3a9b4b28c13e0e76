"use strict";
(() => {
  const find = (id) => document.getElementById(id);
  const make = (kind, name, text) => {
    const node = document.createElement(kind);
    if (name) node.className = name;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const TOP = 24;
  const FEW_COLUMNS = 6; // with more, the filters are folded up
  const LEAST = .5; // best probability of a calibrated index below which nothing matches
  let latest = 0, checked = 0; // numbers of the latest search and explanation; older answers are dropped
  let asked = {}; // current query: {text}, {file}, or {id} of an image
  let shown = null; // image of the dialog: {id} or {file}
  const addresses = new Set(); // object URLs of thumbnails, revoked with the results

  let explains = true; // whether captions of uploaded pictures can be checked
  let limits = { upload: Infinity, top: TOP }; // replaced by those of /about
  const megabytes = (bytes) => (bytes / 1e6).toFixed(1);

  let key = "";
  try { key = sessionStorage.getItem("counterfoil key") || ""; } catch { /* private */ }
  const headers = () => (key ? { "X-API-Key": key } : {});

  const waits = {}; // pending request by route; a newer request aborts it in the browser and on the server
  const giveUp = (...routes) => { for (const route of routes) waits[route]?.abort(); };
  const ask = async (route, fields) => {
    const waiting = waits[route] = new AbortController();
    const files = Object.values(fields).some((value) => value instanceof Blob);
    const more = { method: "POST", headers: headers(), signal: waiting.signal };
    if (files) {
      more.body = new FormData();
      for (const [name, value] of Object.entries(fields)) {
        for (const one of [value].flat()) more.body.append(name, one);
      }
    } else {
      more.headers["Content-Type"] = "application/json";
      more.body = JSON.stringify(fields);
    }
    let answer;
    try { answer = await fetch(route, more); } catch {
      throw new Error(files ? "The server cannot be reached, or closed the connection. Is it running, and the picture small enough?" : AWAY);
    }
    const plain = await answer.json().catch(() => ({}));
    if (answer.status === 401) throw new Error(needKey());
    if (!answer.ok) throw Object.assign(new Error(sentence(plain.error || `The server answers ${answer.status}`)), { refused: answer.status < 500 });
    return plain;
  };
  const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
  const AWAY = "The server cannot be reached. Is it running?";
  const needKey = () => {
    find("key-line").hidden = false;
    find("key").focus();
    return key ? "This API key is wrong; type another and search again." : "This server asks for an API key; type it above and search.";
  };

  const picture = async (image, id, full = false) => {
    const address = `picture?id=${encodeURIComponent(id)}${full ? "&full=true" : ""}`;
    image.dataset.of = id;
    if (!key) { image.src = address; return; }
    const answer = await fetch(address, { headers: headers() });
    if (!answer.ok) return;
    const content = await answer.blob();
    if (image.dataset.of !== id) return; // the element shows another image by now
    image.src = URL.createObjectURL(content);
    addresses.add(image.src);
  };

  const kinds = [...document.getElementsByName("find")];
  const kind = () => kinds.find((one) => one.checked).value;
  const choose = (value) => { for (const one of kinds) one.checked = one.value === value; };
  const counted = (many, one) => `${many} ${many === 1 ? one : `${one}s`}`;
  // pictures that refine the query: more like these, less like those; a new query begins without
  const none = () => ({ more: [], less: [] });
  let examples = none();
  const refine = (list) => {
    examples = { more: examples.more.filter((id) => id !== shown.id), less: examples.less.filter((id) => id !== shown.id) };
    examples[list].push(shown.id);
    find("why").close();
    again(true);
    find("results").focus();
  };
  const refined = () => {
    const told = [["more", "more"], ["less", "less"]].filter(([list]) => examples[list].length);
    return told.map(([list, word]) => `, ${word} like ${counted(examples[list].length, "picture")}`).join("");
  };
  // filters: a select lists the conditions of a column with few values, a field takes any; both
  // hold conditions as the server reads them, "album=holiday", as a JSON list in the value of an option
  const LONG = 200; // letters of a value that a select still lists
  const quoted = (value) => (/^[=<>!~"]/.test(value) ? `"${value}"` : value); // else it begins as an operator does
  const OPERATOR = /^(!=|<=|>=|==?|<|>|~)/;
  let unknown = []; // conditions of an address on columns that the index does not have: the server says so
  let filteredBy = ""; // the conditions of the latest search
  const typed = (column, text) => {
    // ">=2020 <2023" is two conditions; text without an operator is looked for within the values
    const parts = OPERATOR.test(text) ? text.split(/\s+(?=[<>=!~])/) : text ? [`${column.numeric ? "=" : "~"}${text}`] : [];
    return parts.map((part) => `${column.name}${part}`);
  };
  // a column of dates has two fields: the last day is within, so that the condition names the next
  const DAY = /^\d{4}-\d\d-\d\d$/;
  const moved = (day, by) => new Date(Date.parse(day) + by * 86400000).toISOString().slice(0, 10);
  const dated = (control) => {
    if (!DAY.test(control.value)) return [];
    return [`${control.column.name}${control.operator}${control.operator === "<" ? moved(control.value, 1) : control.value}`];
  };
  const setDate = (control, conditions) => {
    const start = `${control.column.name}${control.operator}`;
    const own = conditions.find((one) => one.startsWith(start) && DAY.test(one.slice(start.length)));
    const day = own && own.slice(start.length);
    control.value = !day ? "" : control.operator === "<" ? moved(day, -1) : day;
    return conditions.filter((one) => one !== own);
  };
  const controls = () => [...find("columns").querySelectorAll("select, input")];
  const conditionsOf = (control) => (control.operator ? dated(control) : control.tagName === "SELECT" ? JSON.parse(control.value || "[]") : typed(control.column, control.value.trim()));
  const where = () => [...controls().flatMap(conditionsOf), ...unknown];
  const setWhere = (conditions) => {
    let left = conditions;
    for (const control of controls()) {
      if (control.operator) { left = setDate(control, left); continue; }
      const name = control.column.name;
      const own = left.filter((one) => one.startsWith(name) && OPERATOR.test(one.slice(name.length).trim()));
      left = left.filter((one) => !own.includes(one));
      if (control.tagName === "SELECT") {
        const value = own.length ? JSON.stringify(own) : "";
        if (![...control.options].some((one) => one.value === value)) control.add(new Option(own.join(", "), value));
        control.value = value;
      } else {
        const text = own.map((one) => one.slice(name.length).trim()).join(" ");
        const usual = control.column.numeric ? "=" : "~";
        control.value = own.length === 1 && text.startsWith(usual) && !text.startsWith("==") ? text.slice(1) : text;
      }
    }
    unknown = left;
    if (conditions.length) find("filters").open = true;
  };
  let filtering = false; // whether a filter is being changed, and nothing else of the query
  const filter = () => {
    unknown = [];
    if (`${where()}` === filteredBy) return;
    filtering = true;
    again(true);
    filtering = false;
  };
  const offer = (columns) => {
    const before = where();
    find("filters").hidden = !columns.length;
    find("filters").open = columns.length <= FEW_COLUMNS && innerWidth > 640;
    const fields = columns.flatMap((column) => (column.date ? [{ column, operator: ">=" }, { column, operator: "<" }] : [{ column }]));
    find("columns").replaceChildren(...fields.map(({ column, operator }) => {
      if (operator) {
        const label = make("label", "", `${column.name} ${operator === "<" ? "to" : "from"}`), control = make("input");
        Object.assign(control, { type: "date", column, operator });
        control.onchange = filter;
        label.append(control);
        return label;
      }
      const label = make("label", "", column.name), few = column.values.length > 0 && column.values.every((value) => `${value}`.length < LONG);
      const control = make(few ? "select" : "input");
      if (few) control.append(new Option("any", ""), ...column.values.map((value) => new Option(value, JSON.stringify([`${column.name}=${quoted(value)}`]))));
      else {
        control.type = "text";
        control.placeholder = column.numeric ? "2, >=2, or <9" : "contains …";
        control.autocomplete = "off";
      }
      control.column = column;
      control.onchange = filter;
      // enter would send the form, which begins a new query without its examples
      control.onkeydown = (event) => { if (event.key === "Enter" && !few) { event.preventDefault(); control.onchange(); } };
      label.append(control);
      return label;
    }));
    setWhere(before);
  };
  const valuesOf = (one) => Object.entries(one.columns || {});
  const filtered = () => (where().length ? `, where ${where().join(" and ")}` : "");
  const search = async (route, fields, named) => {
    const turn = ++latest;
    filteredBy = `${where()}`;
    giveUp("search", "similar");
    document.body.classList.add("busy");
    find("told").textContent = "Searching…";
    find("wrong").textContent = "";
    try {
      const began = performance.now();
      const plain = await ask(route, { ...fields, ...examples, where: where(), find: kind(), top: Math.min(TOP, limits.top) });
      if (turn !== latest) return;
      list(plain.results, plain.find);
      const time = Math.round(performance.now() - began);
      const told = counted(plain.results.length, plain.find === "captions" ? "caption" : "picture");
      const order = plain.reranker ? `, put in order by ${plain.reranker}` : "";
      const best = Math.max(...plain.results.map((one) => one.probability ?? 1)); // null: not calibrated
      const nothing = plain.results.length && best < LEAST ? `Nothing here matches: the best has a probability of ${percent(best)}. The nearest: ` : "";
      const note = plain.note ? `${sentence(plain.note)} ` : "";
      find("told").textContent = `${note}${nothing}${told} for ${named}${refined()}${filtered()}, in ${time} ms${order}.`;
    } catch (error) {
      if (turn !== latest) return;
      list([], kind());
      find("told").textContent = "";
      find("wrong").textContent = error.message;
      if (fields.picture && error.refused) { // its card would offer what cannot be done with it
        asked = {};
        find("given").hidden = true;
      }
    } finally {
      if (turn === latest) document.body.classList.remove("busy");
    }
  };

  const list = (results, kind) => {
    for (const address of addresses) URL.revokeObjectURL(address);
    addresses.clear();
    find("found").classList.toggle("texts", kind === "captions");
    find("found").replaceChildren(...results.map(kind === "captions" ? written : pictured));
  };
  const ranked = (one, place) => {
    const rank = make("span", "rank", `${place + 1}`), score = make("span", "score", one.score.toFixed(3));
    rank.prepend(make("span", "aside", "Place "));
    score.prepend(make("span", "aside", "score "));
    return [rank, score];
  };
  const thumbnail = (id, told) => {
    const image = make("img");
    image.alt = told;
    image.loading = "lazy";
    picture(image, id);
    return image;
  };
  const button = (name, text, act) => {
    const node = make("button", name, text);
    node.type = "button";
    node.onclick = act;
    return node;
  };
  const pictured = (one, place) => {
    const label = make("span", "label");
    label.append(...ranked(one, place));
    const name = make("span", "name", one.caption || one.id);
    name.setAttribute("aria-hidden", "true"); // the alternative text of the picture is the same
    name.title = one.id;
    const node = button("", undefined, () => open({ id: one.id, columns: one.columns }, asked.text || one.caption));
    node.append(thumbnail(one.id, one.caption || one.id), label, name);
    if (one.caption) {
      const file = make("span", "name", one.id);
      file.setAttribute("aria-hidden", "true"); // the title of the picture's dialog reads it
      node.append(file);
    }
    const equal = one.same.length ? [`+ ${counted(one.same.length, "equal picture")}`] : [];
    const about = [...(one.missing ? ["its file is gone"] : []), ...equal].join(", ");
    if (about) {
      const told = make("span", "name", about);
      told.title = one.same.join("\n");
      node.append(told);
    }
    const values = valuesOf(one);
    if (values.length) {
      const told = make("span", "name columns", values.map(([, value]) => value).join(" · "));
      told.title = values.map(([name, value]) => `${name}: ${value}`).join("\n");
      node.append(told);
    }
    const item = make("li");
    item.append(node);
    return item;
  };
  const written = (one, place) => {
    const item = make("li"), [rank, score] = ranked(one, place), about = shownPicture();
    const pictures = () => { find("text").value = one.caption; choose("images"); say(one.caption); find("results").focus(); };
    const text = button("caption", one.caption, about ? () => open(about, one.caption) : pictures);
    text.title = about ? `Check its words: ${one.id}` : `Pictures for it: ${one.id}`;
    item.append(rank);
    if (one.image) item.append(thumbnail(one.image, `Written of ${one.image}`));
    item.append(text, score);
    if (about) {
      const more = button("more", "Pictures", pictures);
      more.ariaLabel = `Pictures for: ${one.caption}`;
      item.append(more);
    }
    return item;
  };
  // the query stands in the address, with its examples and filters: it can be shared, and the back
  // button returns to it
  let restoring = false;
  let inside = false; // whether the latest entry of the history is an open picture, which Back closes
  let leaving = false; // whether an entry of a picture that was closed is being left
  const remember = (query) => {
    const words = new URLSearchParams(query);
    if (kind() !== "images") words.set("find", kind());
    for (const [name, values] of Object.entries({ ...examples, where: where() })) {
      for (const one of values) words.append(name, one);
    }
    const address = query ? `?${words}` : "";
    // an address that says the same in other words is replaced, or the back button would stay at it
    const refiltered = filtering && history.state?.filters; // one step back undoes all filters
    const how = restoring || inside || refiltered ? "replaceState" : "pushState";
    if (address === location.search) return;
    history[how](filtering ? { filters: true } : null, "", address || location.pathname);
    inside = false;
  };
  const restore = () => {
    const words = new URLSearchParams(location.search), text = words.get("text") || "", id = words.get("id");
    if (find("why").open) find("why").close();
    choose(words.get("find") === "captions" ? "captions" : "images");
    find("text").value = text;
    examples = { more: words.getAll("more"), less: words.getAll("less") };
    setWhere(words.getAll("where"));
    restoring = true;
    if (text) say(text, true);
    else if (id) similar(id, true);
    else {
      latest += 1;
      giveUp("search", "similar");
      asked = {};
      document.body.classList.remove("busy");
      find("given").hidden = true;
      for (const place of ["told", "wrong"]) find(place).textContent = "";
      list([], kind());
    }
    restoring = false;
  };
  const shownPicture = () => (asked.file ? explains && { file: asked.file } : asked.id ? { id: asked.id } : null);

  const give = (file, keep) => {
    if (!file) return;
    if (!keep) examples = none();
    if (file.size > limits.upload) {
      find("wrong").textContent = `The picture has ${megabytes(file.size)} MB; at most ${megabytes(limits.upload)} are accepted.`;
      return;
    }
    asked = { file };
    remember(); // a picture of the visitor has no address
    find("given").hidden = find("given-picture").hidden = false;
    if (find("given-picture").src.startsWith("blob:")) URL.revokeObjectURL(find("given-picture").src);
    find("given-picture").src = URL.createObjectURL(file);
    find("given-name").textContent = file.name || "pasted picture";
    search("search", { picture: file }, `the picture ${file.name || "you pasted"}`);
  };
  const say = (text, keep) => {
    if (!keep) examples = none();
    asked = { text };
    remember(asked);
    find("given").hidden = true;
    search("search", { text }, `“${text}”`);
  };
  const similar = (id, keep) => {
    if (!keep) examples = none();
    asked = { id };
    remember(asked);
    find("given").hidden = true;
    search("similar", { id }, kind() === "captions" ? `the picture ${id}` : `what is like ${id}`);
  };
  const again = (keep) => (asked.text ? say(asked.text, keep) : asked.file ? give(asked.file, keep) : asked.id && similar(asked.id, keep));
  const from = (value) => { // from the dialog to the results
    choose(value);
    find("why").close();
    similar(shown.id);
    find("results").focus();
  };

  const open = (what, caption) => {
    shown = what;
    leave();
    find("why-name").textContent = what.id || what.file.name || "your picture";
    find("why-picture").alt = what.id ? `Picture ${what.id}` : "The picture you gave";
    find("why-picture").removeAttribute("src");
    if (what.id) picture(find("why-picture"), what.id);
    else {
      delete find("why-picture").dataset.of;
      find("why-picture").src = find("given-picture").src;
    }
    const values = valuesOf(what);
    find("why-columns").hidden = !values.length;
    find("why-columns").textContent = values.map(([name, value]) => `${name}: ${value}`).join(", ");
    find("similar").parentElement.hidden = !what.id;
    find("refine").hidden = !what.id || kind() === "captions" || what.id === asked.id;
    find("caption").value = caption;
    find("answer").hidden = true;
    find("why-told").textContent = "";
    find("why").classList.remove("full");
    find("why").showModal();
    if (!inside) history.pushState({ picture: true }, "", location.href);
    inside = true;
    find("caption").focus();
    if (caption) explain();
  };
  const leave = () => { checked += 1; giveUp("explain"); };
  const explain = async () => {
    leave();
    const caption = find("caption").value.trim(), turn = checked;
    if (!caption) return;
    find("why-told").textContent = "Reading…";
    find("answer").hidden = true;
    try {
      const about = shown.id ? { id: shown.id } : { picture: shown.file };
      const plain = await ask("explain", { ...about, caption });
      if (turn === checked) show(plain);
    } catch (error) {
      if (turn === checked) find("why-told").textContent = error.message;
    }
  };

  const percent = (chance) =>
    chance > 0 && chance < .01 ? "< 1 %" : chance > .99 && chance < 1 ? "> 99 %" : `${Math.round(100 * chance)} %`;
  const signed = (gain) => {
    const text = Math.abs(gain).toFixed(3);
    return Number(text) ? `${gain > 0 ? "+" : "−"}${text}` : text;
  };
  const judged = (plain) => {
    return plain.words.map((word) => {
      if (plain.doubts) {
        const known = word.doubt !== null, doubted = known && word.doubt >= plain.threshold;
        // that no exchange beats a word does not say that it matches: only heads do
        const fits = known && !doubted && word.gain === null;
        const depth = doubted ? word.doubt : fits ? 1 - word.doubt / plain.threshold : 0;
        return { ...word, doubted, fits, depth, number: known ? percent(word.doubt) : "" };
      }
      // a score that changes without a word does not say whether the word is wrong: no claim
      return { ...word, doubted: false, fits: false, depth: 0, number: word.gain === null ? "" : signed(word.gain) };
    });
  };
  const verdict = (word) => (word.doubted ? "doubted" : word.fits ? "matches" : "unsure");
  const show = (plain) => {
    const words = judged(plain), said = find("said"), doubted = words.filter((word) => word.doubted);
    const signs = [...plain.caption]; // the server counts code points, JavaScript strings UTF-16 units
    said.replaceChildren();
    let at = 0;
    for (const word of words) {
      said.append(signs.slice(at, word.start).join(""));
      const node = make("span", `word${word.doubted ? " doubted" : ""}${word.fits ? " fits" : ""}`, word.text);
      node.style.setProperty("--depth", word.depth.toFixed(3));
      if (word.doubted && plain.doubts) node.append(make("small", "", ` ${word.number}`));
      if (plain.doubts) node.append(make("span", "aside", ` (${verdict(word)})`));
      said.append(node);
      at = word.stop;
    }
    said.append(signs.slice(at).join(""));
    find("legend").textContent = words.some((word) => word.doubt !== null && word.gain !== null)
      ? "Underlined words are doubted: another word in their place scores better by more than is usual in true captions."
      : plain.doubts
      ? "Underlined words are doubted, with the probability that they are wrong; green ones match."
      : "The table says how the score changes without each word. That does not say which words match and which are wrong.";
    find("corrected").hidden = !plain.corrected;
    if (plain.corrected) correct(plain.corrected);
    find("basis").textContent = sentence(plain.basis);
    find("measure").textContent = plain.doubts ? "doubt" : "gain without it";
    find("words").replaceChildren(...words.map((word) => {
      const row = make("tr"), head = make("th", "", word.text);
      head.scope = "row";
      const instead = word.corrections.map((one) => `${one.text} ${percent(one.chance)}`).join(", ");
      row.append(head, make("td", "", verdict(word)), make("td", "", word.number), make("td", "", instead || "–"));
      return row;
    }));
    find("answer").hidden = false;
    const told = doubted.length ? ` Doubted: ${doubted.map((word) => `“${word.text}”`).join(", ")}.` : "";
    const instead = plain.corrected ? ` The model would write “${plain.corrected.text}”, score ${plain.corrected.score.toFixed(3)}.` : "";
    find("why-told").textContent = `${plain.told}${told}${instead} Score ${plain.score.toFixed(3)}.`;
  };
  const correct = (corrected) => {
    const signs = [...corrected.text], line = find("corrected");
    line.replaceChildren("Instead: ");
    let at = 0;
    for (const [start, stop] of corrected.changes) {
      line.append(signs.slice(at, start).join(""), make("ins", "", signs.slice(start, stop).join("")));
      at = stop;
    }
    line.append(signs.slice(at).join(""));
  };

  find("ask").onsubmit = (event) => {
    event.preventDefault();
    if (!find("key-line").hidden) {
      key = find("key").value.trim();
      try { sessionStorage.setItem("counterfoil key", key); } catch { /* private */ }
      hello();
    }
    const text = find("text").value.trim();
    unknown = [];
    if (text) say(text);
    else if (asked.file) give(asked.file);
    else find("wrong").textContent = "Type a caption, or drop a picture.";
  };
  find("file").onchange = (event) => { find("text").value = ""; give(event.target.files[0]); event.target.value = ""; };
  find("given-picture").onerror = () => { find("given-picture").hidden = true; }; // the browser reads no HEIC
  find("given-explain").onclick = () => open({ file: asked.file }, "");
  find("check").onsubmit = (event) => { event.preventDefault(); explain(); };
  find("similar").onclick = () => from("images");
  for (const list of ["more", "less"]) find(list).onclick = () => refine(list);
  find("fitting").onclick = () => from("captions");
  find("given-captions").onclick = () => { choose("captions"); again(); };
  for (const one of kinds) one.onchange = () => again();
  find("why").onclose = () => {
    leave();
    if (!inside) return;
    inside = false;
    leaving = true;
    history.back();
  };
  find("enlarge").onclick = () => {
    const full = find("why").classList.toggle("full");
    if (full && shown.id) picture(find("why-picture"), shown.id, true);
  };
  find("close").onclick = () => find("why").close();
  find("why").onclick = (event) => { if (event.target === find("why")) find("why").close(); };
  let over = 0;
  addEventListener("dragenter", (event) => { event.preventDefault(); over += 1; document.body.classList.add("over"); });
  addEventListener("dragleave", () => { over -= 1; if (over <= 0) document.body.classList.remove("over"); });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    over = 0;
    document.body.classList.remove("over");
    find("text").value = "";
    if (event.dataTransfer.files.length) give(event.dataTransfer.files[0]);
    else find("wrong").textContent = "That is no file; drop a picture from a folder.";
  });
  addEventListener("paste", (event) => {
    const file = [...event.clipboardData.files][0];
    if (file) { event.preventDefault(); find("text").value = ""; give(file); }
  });
  const hello = async () => {
    const answer = await fetch("about", { headers: headers() });
    const plain = await answer.json();
    if (!answer.ok) { find("wrong").textContent = answer.status === 401 ? needKey() : sentence(plain.error); return; }
    limits = plain.limits;
    explains = plain.explains_pictures;
    find("given-explain").hidden = !explains;
    find("wrong").textContent = "";
    find("key-line").hidden = true;
    find("text").maxLength = find("caption").maxLength = limits.caption;
    find("drop").hidden = !plain.sees_pictures;
    offer(plain.columns);
    find("kinds").hidden = !plain.captions;
    for (const one of document.querySelectorAll(".of-captions")) one.hidden = !plain.captions;
    const how = plain.sees_pictures ? ", or show a picture like it" : "";
    const said = plain.captions ? ` and ${plain.captions.toLocaleString("en")} captions` : "";
    const order = plain.reranker ? ` What fits is put in order by ${plain.reranker}.` : "";
    find("about").textContent = `Describe what you are looking for${how}. ${plain.images.toLocaleString("en")} pictures${said} are indexed.${order}`;
    find("explains").textContent = `Is a caption right? ${sentence(plain.basis)}`;
  };
  addEventListener("popstate", () => {
    if (leaving) leaving = false;
    else if (inside) {
      inside = false;
      find("why").close();
    } else restore();
  });
  hello().then(() => { if (location.search) restore(); }).catch(() => { find("wrong").textContent = AWAY; });
})();
