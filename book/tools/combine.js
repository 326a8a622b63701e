// Put the pages of the book into this one document, in order, for printing. See pdf.py, which calls it with
// parts: [{ caption, pages: [path, …] }], paths without ".html", and address: that of the published site, or "".
// Ids get the page's name in front, links between pages become links within the document.
async ({ parts, address }) => {
  const paths = parts.flatMap((part) => part.pages);
  const fetched = await Promise.all(paths.map(async (path) => (await fetch(`/${path}.html`)).text()));
  const name = (path, id) => (id ? `${path}--${id}` : path).replaceAll("/", "-");
  const toc = document.querySelector("nav");
  const entry = (list, text, goal) => {
    const link = Object.assign(document.createElement("a"), { href: `#${goal}`, innerHTML: text });
    const item = list.appendChild(document.createElement("li"));
    item.append(link);
    return item;
  };

  const renamed = (article, path) => {
    const here = (value) => value.replace(/url\(#([^)]+)\)/g, (_, id) => `url(#${name(path, id)})`);
    for (const element of article.querySelectorAll("*")) {
      for (const { name: key, value } of [...element.attributes]) {
        if (key === "id" || key === "for") element.setAttribute(key, name(path, value));
        else if (key.startsWith("aria-") && /by$|controls$/.test(key))
          element.setAttribute(key, value.split(/\s+/).map((id) => name(path, id)).join(" "));
        else if (value.includes("url(#")) element.setAttribute(key, here(value));
      }
      if (element.localName === "style") element.textContent = here(element.textContent);
    }
  };

  // A link to a page of the book stays in it; one to another file of the site needs the site's address.
  const relinked = (article, path) => {
    const base = new URL(`/${path}.html`, location);
    for (const element of article.querySelectorAll("[src]")) element.src = new URL(element.getAttribute("src"), base);
    for (const link of article.querySelectorAll("a[href], use[href]")) {
      const goal = new URL(link.getAttribute("href"), base);
      if (goal.origin !== location.origin) {  // print.css adds the address to those that do not show it
        link.classList.toggle("shown", link.textContent.includes(goal.hostname) || /arXiv|doi/.test(link.textContent));
        continue;
      }
      const page = goal.pathname.slice(1).replace(/\.html$/, "");
      const id = decodeURIComponent(goal.hash.slice(1));
      if (paths.includes(page)) link.setAttribute("href", `#${name(page, id)}`);
      else if (address) link.href = address + goal.pathname.slice(1) + goal.hash;
      else link.replaceWith(...link.childNodes);
    }
  };

  // Styles that only some of the pages have, in front of the one for paper.
  const styled = (page, path) => {
    const had = new Set([...document.styleSheets].map((sheet) => sheet.href));
    return [...page.querySelectorAll("link[rel=stylesheet]:not([media=print])")]
      .map((link) => new URL(link.getAttribute("href"), new URL(`/${path}.html`, location)).href)
      .filter((href) => !had.has(href))
      .map((href) => new Promise((loaded, failed) => {
        const link = document.createElement("link");
        Object.assign(link, { rel: "stylesheet", href, onload: loaded, onerror: failed });
        document.querySelector("link[media=print]").before(link);
      }));
  };

  for (const { caption, pages } of parts) {
    if (caption) toc.append(Object.assign(document.createElement("p"), { textContent: caption }));
    const list = toc.appendChild(document.createElement("ol"));
    for (const path of pages) {
      const page = new DOMParser().parseFromString(fetched[paths.indexOf(path)], "text/html");
      await Promise.all(styled(page, path));
      const article = document.importNode(page.querySelector("article.bd-article"), true);
      article.querySelectorAll(".headerlink, button, script:not([type='application/json']), noscript")
        .forEach((element) => element.remove());
      article.querySelectorAll("details").forEach((element) => { element.open = true; });
      article.querySelectorAll(".live-translator, [data-live]").forEach((place) => {
        const where = address ? `It runs at ${address}${path}.html.` : "It runs on the website.";
        place.append(Object.assign(document.createElement("p"), { textContent: where }));
      });
      // Every element becomes an entry of the PDF's structure: names and signs of code need none.
      article.querySelectorAll(".highlight span:is(.w, .n, .nn, .p, .o, .ow, .mi, .mf, .nb, .si, .bp, .fm, .se, .kn)")
        .forEach((span) => span.replaceWith(...span.childNodes));
      article.normalize();
      // In a narrow column, names break at their joints.
      for (const code of article.querySelectorAll(":is(td, th) code"))
        code.innerHTML = code.innerHTML.replace(/(?<=[\w(][._(,=/])(?=\w)|(?<=[a-z]{4})(?=[A-Z])/g, "<wbr>");
      relinked(article, path);
      renamed(article, path);
      article.id = name(path);
      const heading = article.querySelector("h1").textContent;
      entry(list, heading, article.id);
      // A page of its own name, so that the head of its pages says where one is.
      const rule = `@page ${article.id} { @top-right { content: ${JSON.stringify(heading)}; } }`;
      document.head.append(Object.assign(document.createElement("style"), { textContent: rule }));
      article.style.page = article.id;
      document.querySelector("main").append(article);
    }
  }
  return paths.length;
}
